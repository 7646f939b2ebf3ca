// The table of answers: a row a sample and metric, with filters.
const scoreBar = (score) => (score === undefined ? null : draw("svg", { class: "scorebar", width: 60, height: 8, "aria-hidden": "true" }, draw("rect", { width: 60, height: 8, rx: 2 }), draw("rect", { class: "value", width: Math.max(0, Math.min(1, score)) * 60, height: 8, rx: 2 })));

function answersTable(samples) {
  const rows = samples.flatMap((sample) => Object.keys(sample.metrics).map((metric) => ({ sample, metric, judged: sample.metrics[metric] })));
  const open = (row) => openSample(row.sample, row.metric, table.rows);
  const query = (row) => make("button", { type: "button", class: "link", onclick: () => open(row) }, make("bdi", { class: "clamp", dir: "auto" }, textOf(row.sample.query).slice(0, 300) || row.sample.id));
  const table = new Table("Answers", [
    { name: "Query", value: (row) => textOf(row.sample.query), cell: query },
    { name: "Score", number: true, value: (row) => row.judged.score, cell: (row) => [decimal(row.judged.score), scoreBar(row.judged.score)] },
    { name: "System", value: (row) => row.sample.system, cell: (row) => isolated(row.sample.system) },
    { name: "Metric", value: (row) => row.metric, cell: (row) => row.metric },
    { name: "Missing", number: true, down: true, value: (row) => row.judged.uncovered, cell: (row) => count(row.judged.uncovered) },
    { name: "Covered", number: true, optional: true, value: (row) => row.judged.covered, cell: (row) => count(row.judged.covered) },
    { name: "Status", optional: true, value: (row) => row.judged.status, cell: (row) => row.judged.status.replaceAll("_", " ") },
    { name: "Sample", optional: true, value: (row) => row.sample.id, cell: (row) => isolated(row.sample.id) },
  ], 1);
  const system = choice("System", distinct(rows.map((row) => row.sample.system)), refresh);
  const metric = choice("Metric", distinct(rows.map((row) => row.metric)), refresh);
  const status = choice("Status", distinct(rows.map((row) => row.judged.status)), refresh);
  const [least, most] = ["Score from", "Score to"].map((label) => ({ label, input: make("input", { type: "number", max: 1, step: 0.05, oninput: refresh }) }));
  const text = make("input", { type: "search", oninput: refresh, placeholder: "in query, response and statements" });
  const numeric = ({ label, input }) => make("label", {}, label, input);
  const form = make("div", { class: "filters", role: "search", "aria-label": "Filter the answers" }, make("label", { class: "wide" }, "Text", text), system.node, metric.node, status.node, numeric(least), numeric(most), button("Clear", clear));
  function refresh() {
    const words = text.value.trim().toLowerCase();
    const within = (score) => (least.input.value === "" || (score !== undefined && score >= Number(least.input.value))) && (most.input.value === "" || (score !== undefined && score <= Number(most.input.value)));
    table.show(rows.filter((row) => (!system.value || row.sample.system === system.value) && (!metric.value || row.metric === metric.value) && (!status.value || row.judged.status === status.value) && within(row.judged.score) && (!words || mentions(row, words))));
  }
  function clear() {
    for (const one of [system, metric, status]) one.value = "";
    for (const one of [text, least.input, most.input]) one.value = "";
    refresh();
  }
  refresh();
  return make("div", {}, form, table.node);
}

function mentions({ sample, judged }, words) {
  const has = (number) => textOf(number).toLowerCase().includes(words);
  return sample.id.toLowerCase().includes(words) || has(sample.query) || has(sample.response) || (judged.statements || []).some((one) => has(one.text));
}
