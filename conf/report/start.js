// Reads the data, which is packed where it is large, and fills the page.
async function readData() {
  const holder = byId("data");
  if (holder.type === "application/json") return JSON.parse(holder.textContent);
  if (!("DecompressionStream" in window)) throw new Error("This browser cannot unpack the answers (it has no DecompressionStream). Open the file in Chrome 80, Firefox 113, Safari 16.4 or a later one. All figures are shown.");
  const bytes = Uint8Array.from(atob(holder.textContent), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// Statements stand in the data as columns, for they pack better so (jobs/report/sources.py).
function unfold(columns, contexts, start) {
  const sum = (steps) => { let at = 0; return steps.map((step) => (at += step)); };
  const texts = sum(columns.text), numbers = sum(columns.number), points = columns.point ? sum(columns.point) : texts;
  return texts.map((text, place) => {
    const sign = columns.is[place], more = columns.more ? columns.more[place] : {};
    const sources = (more.sources || []).map((one) => (typeof one === "number" ? contexts[one][0] : one));
    return { id: `${start}${numbers[place]}`, ...more, sources, text, point: points[place], covered: sign === "?" ? null : sign === "1", basis: sign === "b" };
  });
}

function fill(data) {
  DATA = data;
  for (const sample of data.samples) {
    sample.contexts = data.contexts[sample.contexts] || [];
    for (const [metric, judged] of Object.entries(sample.metrics)) {
      if (judged.statements) judged.statements = unfold(judged.statements, sample.contexts, `${sample.id}:${metric}:`);
    }
  }
  byId("answers-table").replaceChildren(answersTable(data.samples));
  if (byId("beside-table")) byId("beside-table").replaceChildren(besideTable(data.samples));
  for (const link of document.querySelectorAll("button[data-sample]")) {
    const sample = data.samples.find((one) => one.id === link.dataset.sample && one.run === Number(link.dataset.run));
    if (sample) link.addEventListener("click", () => openSample(sample, Object.keys(sample.metrics).find((metric) => sample.metrics[metric].failures) ?? Object.keys(sample.metrics)[0]));
    else link.disabled = true;
  }
  // Of an opened answer what is folded is printed too
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...byId("opened").querySelectorAll(".statements details:not([open])")];
    folded.forEach((one) => { one.fill(); one.open = true; });
  });
  window.addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
  document.documentElement.dataset.ready = "true";
}

readData().then(fill).catch((error) => {
  byId("problem").textContent = error.message;
  byId("problem").hidden = false;
});
