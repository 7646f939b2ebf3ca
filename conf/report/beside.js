// Two systems on the same queries: what both miss, what one of them does, with the texts beside each other.
function besideTable(samples) {
  const metrics = distinct(samples.flatMap((sample) => Object.keys(sample.metrics)));
  // Those with most answers first: they are the likeliest to have queries in common
  const sizes = new Map();
  for (const { system } of samples) sizes.set(system, (sizes.get(system) || 0) + 1);
  const systems = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a) || a.localeCompare(b));
  const metric = choice("Metric", metrics, refresh, null);
  const first = choice("First system", systems, refresh, null);
  const second = choice("Second system", systems, refresh, null);
  second.value = systems[1];
  const open = (row) => openPair(row, metric.value, table.rows);
  const number = (name, key) => ({ name, number: true, down: true, value: (row) => row[key].length, cell: (row) => count(row[key].length) });
  const table = new Table("Queries that both systems answered", [
    { name: "Query", value: (row) => textOf(row.a.query), cell: (row) => make("button", { type: "button", class: "link", onclick: () => open(row) }, make("bdi", { class: "clamp", dir: "auto" }, textOf(row.a.query).slice(0, 300))) },
    number("Only the first", "one"),
    number("Only the second", "other"), number("Both miss", "neither"), number("Both cover", "both"),
    { name: "Difference", number: true, value: (row) => row.difference, cell: (row) => (row.difference === null ? "–" : `${row.difference > 0 ? "+" : ""}${row.difference.toFixed(3)}`) },
  ], 1, true);
  const summary = make("p", { role: "status" });
  function refresh() {
    const rows = pairsOf(samples, metric.value, first.value, second.value);
    const sum = (key) => count(rows.reduce((total, row) => total + row[key].length, 0));
    summary.replaceChildren(rows.length
      ? `${plural(rows.length, "query").replace("querys", "queries")} in common. Statements: both cover ${sum("both")}, only the first ${sum("one")}, only the second ${sum("other")}, both miss ${sum("neither")}.`
      : "The two have no query in common under this metric.");
    table.show(rows);
  }
  refresh();
  return make("div", {}, make("div", { class: "filters" }, metric.node, first.node, second.node), summary, table.node);
}

// Of each question that both answered the first sample of each, and their statements by who covers them.
function pairsOf(samples, metric, first, second) {
  const answers = (system) => {
    const found = new Map();
    for (const sample of samples) {
      if (sample.system === system && sample.metrics[metric] && sample.question !== undefined && !found.has(sample.question)) found.set(sample.question, sample);
    }
    return found;
  };
  const others = answers(second);
  if (first === second) return [];
  return [...answers(first)].filter(([question]) => others.has(question)).map(([question, a]) => compareTwo(a, others.get(question), metric));
}

function compareTwo(a, b, metric) {
  const points = [a, b].map((sample) => {
    const found = new Map();
    for (const one of sample.metrics[metric].statements || []) {
      if (one.kept !== false && (!found.has(one.point) || one.covered)) found.set(one.point, one);
    }
    return found;
  });
  const row = { a, b, one: [], other: [], neither: [], both: [] };
  for (const point of new Set([...points[0].keys(), ...points[1].keys()])) {
    const own = points.map((found) => found.get(point)), covered = own.map((one) => one !== undefined && one.covered === true);
    const group = covered[0] && covered[1] ? "both" : covered[0] ? "one" : covered[1] ? "other" : "neither";
    row[group].push(own[0] ?? own[1]);
  }
  const scores = [a, b].map((sample) => sample.metrics[metric].score);
  row.difference = scores.includes(undefined) ? null : scores[0] - scores[1];
  return row;
}

function openPair(row, metric, around) {
  const place = around.indexOf(row);
  const step = (by) => around[place + by] && openPair(around[place + by], metric, around);
  const group = (title, statements) => make("section", {}, make("h3", {}, `${title}: ${count(statements.length)}`), longList(statements, (one) => make("li", {}, make("div", { class: "flat" }, make("span", { class: "words" }, shown(one.text)))), "statements"));
  const side = (sample) => make("div", {}, make("h3", {}, isolated(sample.system), ` ${decimal(sample.metrics[metric].score)}`), responseOf(sample, sample.metrics[metric]), button("Open this answer", () => openSample(sample, metric)));
  openDialog(`${row.a.system} and ${row.b.system} · ${metric}`, step, [place > 0, place < around.length - 1], [
    make("h2", { id: "opened-title" }, shown(row.a.query)),
    make("div", { class: "columns" }, side(row.a), side(row.b)),
    make("div", { class: "columns" }, group(`Only ${row.a.system} covers`, row.one), group(`Only ${row.b.system} covers`, row.other)),
    make("div", { class: "columns" }, group("Both miss", row.neither), group("Both cover", row.both)),
  ]);
}
