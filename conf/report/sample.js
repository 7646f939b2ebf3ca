// One answer, or two of one query, opened in the dialog.
const LONG_LIST = 100;
const wordsFor = (one) => textOf(one.text).replace(/^Q: .* A: /s, "");

function openSample(sample, metric, around = null) {
  const judged = sample.metrics[metric] || {};
  const place = around ? around.findIndex((row) => row.sample === sample && row.metric === metric) : -1;
  const step = (by) => around && around[place + by] && openSample(around[place + by].sample, around[place + by].metric, around);
  const where = [sample.system, metric, sample.id].join(" · ");
  openDialog(where, step, [place > 0, around !== null && place >= 0 && place < around.length - 1], [
    make("h2", { id: "opened-title" }, shown(sample.query)),
    factsOf(sample, metric, judged),
    tabsOf(sample, metric, around),
    ...(judged.failures || []).map(([stage, kind, error]) => make("p", { class: "problem" }, `Failed: ${stage ?? ""}, ${kind ?? ""}`, error ? ": " : "", isolated(error ?? ""))),
    make("div", { class: "columns" },
      make("div", {}, responseOf(sample, judged), contextsOf(sample)),
      make("div", {}, statementsOf(sample, metric, judged), measuresOf(judged))),
    conflictsOf(judged),
    claimsOf(sample, judged),
    graphPart(sample, judged),
    judged.words === undefined ? null : make("section", {}, make("h3", {}, "The judge's own words"), judged.words.map(([stage, text]) => [make("h4", {}, stage.replaceAll("_", " ")), make("div", { class: "words-of-judge", dir: "auto" }, textOf(text), cutNote(text))])),
  ]);
}

function openDialog(where, step, [before, after], parts) {
  const dialog = byId("opened");
  const bar = make("div", { class: "bar" }, isolated(where, "where"), button("Previous", () => step(-1), { disabled: !before }), button("Next", () => step(1), { disabled: !after }), button("Close", () => dialog.close()));
  const held = bar.childNodes[[...(dialog.firstChild?.childNodes ?? [])].indexOf(document.activeElement)];
  dialog.replaceChildren(bar, make("div", { class: "inside" }, parts));
  dialog.onkeydown = (event) => {
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" && before) step(-1);
    if (event.key === "ArrowRight" && after) step(1);
  };
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  (held && !held.disabled ? held : bar.lastChild).focus();
}

function factsOf(sample, metric, judged) {
  const differs = judged.score_low !== undefined && (judged.score_low !== judged.score || judged.score_high !== judged.score);
  const bounds = differs ? `, between ${decimal(judged.score_low, 2)} and ${decimal(judged.score_high, 2)}` : "";
  const counts = ["covered", "uncovered", "unjudged", "dropped"].filter((name) => judged[name]).map((name) => `${count(judged[name])} ${name === "uncovered" ? "missing" : name}`);
  const run = DATA.runs.length > 1 ? [make("li", {}, "run ", isolated(DATA.runs[sample.run]))] : [];
  return make("ul", { class: "facts" },
    make("li", {}, `${metric} `, make("b", {}, decimal(judged.score)), bounds), make("li", {}, `status ${judged.status}`),
    counts.map((one) => make("li", {}, one)), make("li", {}, "system ", isolated(sample.system)), make("li", {}, "sample ", isolated(sample.id)), run);
}

function tabsOf(sample, metric, around) {
  const metrics = Object.keys(sample.metrics);
  if (metrics.length < 2) return null;
  const go = (one) => openSample(sample, one, around);
  return make("div", { class: "tabs", role: "group", "aria-label": "Metric" }, metrics.map((one) => button(`${one} ${decimal(sample.metrics[one].score, 2)}`, () => go(one), { "aria-pressed": one === metric ? "true" : "false" })));
}

// What a response covers is marked where its words are: by claims where the metric has them, else by statements.
function coveredBy(judged) {
  const claims = new Map((judged.claims || []).map((one) => [one.id, one]));
  return (judged.statements || []).flatMap((one, place) => {
    if (!one.covered) return [];
    const own = (one.claims || []).map((id) => claims.get(id)).filter(Boolean);
    return (own.length ? own : [one]).map((from) => [place + 1, wordsFor(from)]);
  });
}

function responseOf(sample, judged, heading = "Response") {
  const covered = coveredBy(judged), text = textOf(sample.response);
  const body = text ? [marked(text, covered, 0.5), cutNote(sample.response)] : [make("span", { class: "cut" }, "(empty)")];
  const note = covered.length ? make("p", { class: "note" }, "Marked sentences say the covered statements of these numbers, by shared words.") : null;
  return make("section", {}, make("h3", {}, heading), make("p", { class: "prose", dir: "auto" }, body), note);
}

function contextsOf(sample) {
  const contexts = sample.contexts || [];
  if (!contexts.length) return null;
  return later(`Contexts (${count(contexts.length)})`, () => longList(contexts, ([id, text]) => make("li", {}, make("b", {}, isolated(id)), make("p", { class: "prose quoted", dir: "auto" }, shown(text))), "plain"));
}

// Details whose content is made when they are opened.
function later(summary, content) {
  const details = make("details", {}, make("summary", { onclick: () => details.fill() }, summary));
  details.fill = () => details.childElementCount === 1 && details.append(content());
  details.addEventListener("toggle", details.fill);
  return details;
}

function longList(items, line, kind) {
  const list = make("ul", { class: kind });
  const more = button("", () => extend());
  function extend() {
    const from = list.childElementCount;
    list.append(...items.slice(from, from + LONG_LIST).map((one, place) => line(one, from + place)));
    const rest = items.length - list.childElementCount;
    more.hidden = rest <= 0;
    more.textContent = `Show ${count(Math.min(rest, LONG_LIST))} more of ${count(rest)}`;
  }
  extend();
  return make("div", {}, list, more);
}

// The criteria of a rubric by dimension, each with its points and its verdict or grade.
function criteriaOf(judged) {
  const sum = (rows, value) => rows.reduce((total, one) => total + value(one), 0);
  const line = (one) => make("li", {}, later([badge(one.earned === undefined ? "not judged" : `${decimal(one.earned, 1)} of ${decimal(one.points, 1)}`), " ", make("span", { class: "words" }, shown(one.text)), " ", one.verdict ? badge(one.verdict, one.verdict) : null],
    () => make("div", { class: "below" }, one.reason === undefined ? "The judge gave no reason." : shown(one.reason))));
  return make("section", {}, distinct(judged.criteria.map((one) => one.dimension ?? "")).map((name) => {
    const own = judged.criteria.filter((one) => (one.dimension ?? "") === name);
    const points = `${decimal(sum(own, (one) => one.earned ?? 0), 1)} of ${decimal(sum(own, (one) => Math.max(one.points ?? 0, 0)), 1)} points`;
    return [make("h3", {}, isolated(name || "Criteria"), `: ${points}`), longList(own, line, "statements")];
  }));
}

// The sentences of a response, each with its sources, their support and the reasons.
function citationsOf(judged) {
  const verdict = (one) => (one.support ? badge(`${one.support === "none" ? "no" : one.support} support`, { full: "supported", none: "contradicted" }[one.support]) : badge(one.status.replace("_", " ")));
  const reason = (one) => make("div", { class: "below" }, one.reason === undefined ? "The judge gave no reason." : shown(one.reason));
  const line = (one) => make("li", {}, later([verdict(one), " ", make("span", { class: "words" }, shown(one.sentence))], () => make("div", { class: "below" },
    judged.citations.filter((other) => other.number === one.number && other.source !== undefined).map((other) => make("div", {}, verdict(other), " ", shown(other.source), reason(other))))));
  const sentences = judged.citations.filter((one) => one.source === undefined);
  const cited = sentences.filter((one) => one.status !== "uncited").length;
  return make("section", {}, make("h3", {}, `${cited} of ${sentences.length} sentences with a citation`), longList(sentences, line, "statements"));
}

function statementsOf(sample, metric, judged) {
  if (judged.criteria) return criteriaOf(judged);
  if (judged.citations) return citationsOf(judged);
  const all = (judged.statements || []).map((one, place) => ({ one, number: place + 1 }));
  const wanted = all.filter(({ one }) => one.kept !== false), rest = all.length - wanted.length;
  const corrections = correctionPart(sample, metric);
  const groups = ["missing", "unjudged", "covered"].map((kind) => [kind, wanted.filter(({ one }) => kindOf(one) === kind)]);
  const parts = groups.filter(([kind, own]) => own.length || kind !== "unjudged").flatMap(([kind, own]) => {
    const basis = own.filter(({ one }) => one.basis).length;
    const note = basis ? make("p", { class: "note" }, `Adding the ${plural(basis, "statement")} marked basis would complete the answer.`) : null;
    const title = { missing: "Missing", unjudged: "Not judged", covered: "Covered" }[kind];
    return [make("h3", {}, `${title}: ${count(own.length)}`), note, longList(own, ({ one, number }) => statementOf(sample, metric, one, number, corrections.refresh), "statements")];
  });
  if (!all.length) return make("p", { class: "empty" }, "There are no statements.");
  return make("section", {}, parts, corrections.node, rest ? make("p", { class: "note" }, `${plural(rest, "statement")} more that an answer need not give.`) : null);
}

function statementOf(sample, metric, one, number, changed) {
  const judged = sample.metrics[metric], box = correctionBox(sample, metric, one, number, changed);
  const kind = kindOf(one), says = { covered: "covered", missing: "missing", unjudged: "not judged" }[kind];
  const weight = one.weight === undefined ? [] : [badge(`weight ${decimal(one.weight, 2)}`)];
  const head = [make("span", { class: "sign", role: "img", "aria-label": says }, SIGNS[kind]), make("span", { class: "number" }, `${number}`), make("span", { class: "words" }, shown(one.text), " ", one.basis ? badge("basis", "basis") : null, weight)];
  const below = belowOf(sample, judged, one);
  if (!below) return make("li", { class: `${kind} boxed` }, box, make("div", { class: "flat" }, head));
  return make("li", { class: `${kind} boxed` }, box, later(head, below));
}

// What is below a statement: contexts with the stating sentence marked, other wordings, covering claims, ratings.
function belowOf(sample, judged, one) {
  const sources = one.sources || [], members = one.members || [];
  const claims = (judged.claims || []).filter((claim) => (one.claims || []).includes(claim.id));
  const ratings = ["relevance", "salience", "rank", "source_weight", "anchor", "found_by", "arecall", "erecall", "holistic"].filter((name) => one[name] !== undefined);
  if (!sources.length && !members.length && !claims.length && !ratings.length && one.reason === undefined) return null;
  return () => make("div", { class: "below" },
    longList(sources, (id) => sourceOf(sample, id, wordsFor(one)), "plain"),
    members.length ? make("p", {}, "Also worded: ", members.map((text, place) => [place ? "; " : "", shown(text)])) : null,
    one.reason === undefined ? null : make("p", {}, "Reason of the judge: ", shown(one.reason)),
    claims.map((claim) => make("p", {}, "Covered by: ", shown(claim.text))),
    ratings.length ? make("ul", { class: "facts" }, ratings.map((name) => make("li", {}, `${name.replaceAll("_", " ")} `, isolated(String(one[name]))))) : null);
}

function sourceOf(sample, id, statement) {
  const found = (sample.contexts || []).find(([name]) => name === id);
  const text = found ? found[1] : (sample.chunks || {})[id];
  if (text === undefined || text === null) return make("li", {}, "stated in ", isolated(id));
  return make("li", {}, "stated in ", make("b", {}, isolated(id)), make("p", { class: "prose quoted", dir: "auto" }, marked(textOf(text), [[null, statement]], 0), cutNote(text)));
}

function conflictsOf(judged) {
  const statements = judged.statements || [], alone = judged.graph ? judged.graph.alone : [];
  const name = (place) => (place < statements.length ? [`${place + 1} `, shown(statements[place].text)] : alone[place - statements.length] ? [shown(alone[place - statements.length][0])] : ["?"]);
  const told = judged.conflicts || [];
  // What is told of statements is not listed again; without the table of conflicts nothing is told
  const pairs = (judged.graph ? judged.graph.edges : []).filter(([a, b, kind]) => kind === CONTRADICTS && (!told.length || Math.max(a, b) >= statements.length));
  const against = (judged.claims || []).filter((claim) => claim.verdict === "contradicted");
  if (!told.length && !pairs.length && !against.length) return null;
  const lines = [...told.map((text) => make("li", {}, shown(text))), ...pairs.map(([a, b]) => make("li", {}, name(a), make("b", {}, " ≠ contradicts "), name(b))), ...against.map((claim) => make("li", {}, shown(claim.text), make("b", {}, " is contradicted by its evidence")))];
  return make("section", {}, make("h3", {}, `Conflicts: ${count(lines.length)}`), longList(lines, (line) => line, "plain"));
}

function claimsOf(sample, judged) {
  const claims = judged.claims || [];
  if (!claims.length) return null;
  const judgedAny = claims.some((claim) => claim.verdict !== undefined);
  const line = (claim, place) => {
    const head = [make("span", { class: "number" }, `R${place + 1}`), make("span", { class: "words" }, shown(claim.text), " ", judgedAny ? badge(claim.verdict ?? "not judged", claim.verdict ?? "") : null)];
    if (!(claim.evidence || []).length) return make("li", {}, make("div", { class: "flat" }, head));
    return make("li", {}, later(head, () => make("div", { class: "below" }, claim.evidence.map(([chunk, relation]) => make("div", {}, make("b", {}, isolated(chunk)), " ", relation ? badge(relation, relation) : null, make("p", { class: "prose quoted", dir: "auto" }, marked(textOf((sample.chunks || {})[chunk]), [[null, textOf(claim.text)]], 0.5), cutNote((sample.chunks || {})[chunk])))))));
  };
  return make("section", {}, make("h3", {}, `Claims of the response: ${count(claims.length)}`), longList(claims, line, "statements"));
}

function graphPart(sample, judged) {
  const graph = graphOf(sample, judged);
  if (!graph.edges.length) return null;
  return make("section", {}, make("h3", {}, "Fact graph"), drawGraph(graph));
}

function measuresOf(judged) {
  const measures = Object.entries(judged.measures || {});
  if (!measures.length) return null;
  return make("section", {}, make("h3", {}, "Measures"), make("ul", { class: "facts" }, measures.map(([name, value]) => make("li", {}, `${name.replaceAll("_", " ")} `, make("b", {}, decimal(value))))));
}
