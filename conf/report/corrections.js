// Corrections by a reader: verdicts on statements, and the file of them that estimate and meta-evaluate read.
const FORMULA = /^'*[=+\-@\t\r\n＝＋－＠]/u;
const CORRECTIONS = new Map();
const correctionsOf = (sample, metric) => CORRECTIONS.get(sample.metrics[metric]) || new Map();
const verdictOf = (judged, one) => (CORRECTIONS.get(judged) || new Map()).get(one) ?? one.covered;

// A box beside a statement. A statement that nobody judged has neither verdict until a reader decides.
function correctionBox(sample, metric, one, number, changed) {
  const judged = sample.metrics[metric];
  const box = make("input", { type: "checkbox", "aria-label": `The response covers statement ${number}`, onchange: correct });
  const verdict = verdictOf(judged, one);
  box.checked = verdict === true;
  box.indeterminate = verdict === null;
  function correct() {
    if (!CORRECTIONS.has(judged)) CORRECTIONS.set(judged, new Map());
    CORRECTIONS.get(judged).set(one, box.checked);
    changed();
  }
  return box;
}

// The button below the statements, with the number of changed verdicts of this run and metric.
function correctionPart(sample, metric) {
  const note = make("span", { class: "note", role: "status" });
  const save = button("Download corrections", () => saveFile(`corrections-${DATA.runs[sample.run]}-${metric}.csv`, correctionRows(sample.run, metric)));
  function refresh() {
    const own = DATA.samples.filter((one) => one.run === sample.run && correctionsOf(one, metric).size);
    save.disabled = !own.length;
    note.textContent = own.length ? ` ${plural(own.length, "answer")} with corrections under ${metric}` : " Tick the statements that the response covers.";
  }
  refresh();
  return { node: make("p", {}, save, note), refresh };
}

// A row for each corrected answer: its statements with the verdict of the reader, and the share of covered ones.
function correctionRows(run, metric) {
  const rows = [["sample_id", "query", "response", "system", "metric", "score", "aspects"]];
  for (const sample of DATA.samples) {
    if (sample.run !== run || !correctionsOf(sample, metric).size) continue;
    const judged = sample.metrics[metric];
    const decided = judged.statements.filter((one) => one.kept !== false && verdictOf(judged, one) !== null);
    const aspects = decided.map((one) => ({ id: one.id, text: textOf(one.text), labels: [verdictOf(judged, one) ? "yes" : "no"] }));
    const score = aspects.filter((one) => one.labels[0] === "yes").length / aspects.length;
    rows.push([sample.id, textOf(sample.query), textOf(sample.response), sample.system, metric, String(score), JSON.stringify(aspects)]);
  }
  return rows;
}

// CSV without formulas, as untold export writes it.
function saveFile(name, rows) {
  const cell = (text) => `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const text = rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: url, download: name.replaceAll(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
