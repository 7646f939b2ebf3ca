// The fact graph of an answer: boxes in columns by kind, ordered so that lines cross little; zoom by wheel, keys and buttons.
const WIDE = 230, HIGH = 34, GAP = 14, BETWEEN = 100, ROWS = 16, MOST_NODES = 150, PAD = 24;
const LETTERS = 40;
const KINDS = ["context", "response", "missing", "unjudged", "covered"];
const SIGNS = { covered: "✓", missing: "✗", unjudged: "?", response: "R", context: "C" };
const MEANING = { covered: "covered statement", missing: "missing statement", unjudged: "statement not judged", response: "claim of the response", context: "context" };
const [ENTAILS, CONTRADICTS, STATES] = [0, 1, 2];
const EDGES = ["edge entailment", "edge contradiction", "edge states"];
const kindOf = (one) => (one.covered === true ? "covered" : one.covered === false ? "missing" : "unjudged");

// Nodes {label, text, kind, basis} and edges [from, to, kind]: facts, else claims and what they cover, else contexts.
function graphOf(sample, judged) {
  const all = judged.statements || [], statements = all.filter((one) => one.kept !== false);
  const nodes = statements.map((one) => ({ label: `${all.indexOf(one) + 1}`, text: textOf(one.text), words: wordsFor(one), kind: kindOf(one), basis: one.basis }));
  const edges = [];
  if (judged.graph) {
    for (const [text, origin] of judged.graph.alone) {
      const kind = origin === "context" ? "context" : "response";
      nodes.push({ label: `${SIGNS[kind]}${nodes.length - statements.length + 1}`, text: textOf(text), kind });
    }
    edges.push(...judged.graph.edges);
  } else if (judged.claims) {
    const places = new Map(judged.claims.map((one, place) => [one.id, nodes.push({ label: `R${place + 1}`, text: textOf(one.text), kind: "response" }) - 1]));
    statements.forEach((one, place) => (one.claims || []).forEach((id) => places.has(id) && edges.push([places.get(id), place, STATES])));
  } else {
    const texts = new Map(sample.contexts || []), places = new Map();
    statements.forEach((one, place) => (one.sources || []).forEach((id) => {
      if (!places.has(id)) places.set(id, nodes.push({ label: `C${places.size + 1}`, text: `${id}: ${textOf(texts.get(id))}`, kind: "context" }) - 1);
      edges.push([places.get(id), place, STATES]);
    }));
  }
  return { nodes: nodes.slice(0, MOST_NODES), edges: edges.filter(([a, b]) => a < MOST_NODES && b < MOST_NODES), left: Math.max(0, nodes.length - MOST_NODES) };
}

// Gives each node x and y. A column is a kind, folded where it is long; its order follows the means of its neighbours.
function layOut({ nodes, edges }) {
  const near = nodes.map(() => []);
  edges.forEach(([a, b]) => { near[a].push(b); near[b].push(a); });
  const columns = KINDS.map((kind) => nodes.filter((node) => node.kind === kind)).filter((column) => column.length);
  const index = new Map(nodes.map((node, place) => [node, place]));
  const rank = () => columns.forEach((column) => column.forEach((node, place) => { node.rank = (place + 0.5) / column.length; }));
  rank();
  for (let round = 0; round < 6; round += 1) {
    columns.forEach((column) => column.forEach((node) => {
      const ranks = near[index.get(node)].map((other) => nodes[other].rank);
      node.pull = ranks.length ? ranks.reduce((a, b) => a + b) / ranks.length : node.rank;
    }));
    columns.forEach((column) => column.sort((a, b) => a.pull - b.pull));
    rank();
  }
  const folded = columns.flatMap((column) => {
    const rows = Math.ceil(column.length / Math.ceil(column.length / ROWS));
    return Array.from({ length: Math.ceil(column.length / rows) }, (_, part) => column.slice(part * rows, (part + 1) * rows));
  });
  const tallest = Math.max(...folded.map((column) => column.length), 1);
  folded.forEach((column, across) => column.forEach((node, down) => {
    node.x = across * (WIDE + BETWEEN);
    node.y = (down + (tallest - column.length) / 2) * (HIGH + GAP);
  }));
  return { width: folded.length * (WIDE + BETWEEN) - BETWEEN, height: tallest * (HIGH + GAP) - GAP };
}

function pathOf(a, b) {
  const [from, to] = [a.y + HIGH / 2, b.y + HIGH / 2];
  if (a.x === b.x) {
    const out = a.x + WIDE, bend = out + 26 + Math.min(60, Math.abs(to - from) / 4);
    return { d: `M${out} ${from}C${bend} ${from} ${bend} ${to} ${out} ${to}`, at: [(out + 3 * bend) / 4, (from + to) / 2] };
  }
  const right = b.x > a.x, start = right ? a.x + WIDE : a.x, end = right ? b.x : b.x + WIDE, middle = (start + end) / 2;
  return { d: `M${start} ${from}C${middle} ${from} ${middle} ${to} ${end} ${to}`, at: [middle, (from + to) / 2] };
}

function drawGraph(graph) {
  const { nodes, edges } = graph, size = layOut(graph);
  const caption = make("p", { class: "caption", role: "status" }, "Choose a box to read its text.");
  const arrow = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, draw("path", { class: "arrow", d: "M0 0L8 4L0 8z" }));
  const lines = edges.map(([from, to, kind]) => {
    const { d, at } = pathOf(nodes[from], nodes[to]);
    const crossing = kind === CONTRADICTS ? draw("text", { class: "crossing", x: at[0], y: at[1] + 5 }, "≠") : null;
    const line = draw("g", { class: EDGES[kind] }, draw("path", { class: EDGES[kind], d, "marker-end": kind === ENTAILS ? "url(#arrow)" : null }), crossing);
    return { line, from, to };
  });
  const boxes = nodes.map((node, place) => {
    const inner = node.basis ? draw("rect", { class: "inner", x: node.x + 3.5, y: node.y + 3.5, width: WIDE - 7, height: HIGH - 7, rx: 4 }) : null;
    const label = draw("text", { class: "label", x: node.x + 9, y: node.y + 21 }, `${SIGNS[node.kind] === node.label[0] ? "" : SIGNS[node.kind]} ${node.label}${node.basis ? " ★" : ""}`);
    // A picture in a picture clips what it holds
    const from = node.basis ? 64 : 46;
    const words = draw("svg", { x: node.x + from, y: node.y, width: WIDE - from - 8, height: HIGH }, draw("text", { y: 21 }, (node.words ?? node.text).slice(0, LETTERS)));
    const box = draw("g", { class: `node ${node.kind} ${node.basis ? "basis" : ""}`, onclick: () => select(place) }, draw("title", {}, node.text), draw("rect", { x: node.x, y: node.y, width: WIDE, height: HIGH, rx: node.kind === "response" ? 0 : 7 }), inner, label, words);
    return box;
  });
  const told = `${plural(nodes.length, "node")}, ${plural(edges.length, "relation")}; the relations are listed below`;
  const svg = draw("svg", { class: "graph", role: "img", tabindex: 0, "aria-label": `Fact graph: ${told}. Keys: + and - zoom, arrows move, 0 fits.` }, draw("defs", {}, arrow), lines.map((one) => one.line), boxes);
  function select(place) {
    const near = lines.filter((one) => one.from === place || one.to === place);
    svg.classList.add("selected");
    lines.forEach((one) => one.line.firstChild.classList.toggle("near", near.includes(one)));
    boxes.forEach((box, other) => box.classList.toggle("near", other === place || near.some((one) => one.from === other || one.to === other)));
    caption.replaceChildren(make("b", {}, `${nodes[place].label} `), isolated(nodes[place].text), ` (${MEANING[nodes[place].kind]}${nodes[place].basis ? ", basis" : ""})`);
  }
  // Small graphs are drawn no larger than their texts are read
  const wide = Math.max(size.width + 2 * PAD, Math.min(1100, window.innerWidth - 60)), high = Math.max(size.height + 2 * PAD, 120);
  svg.setAttribute("height", Math.min(600, high));
  const zoom = zooming(svg, [(size.width - wide) / 2, (size.height - high) / 2, wide, high]);
  const buttons = make("div", { class: "tabs graph-buttons" }, button("+", () => zoom(0.8), { "aria-label": "Zoom in" }), button("−", () => zoom(1.25), { "aria-label": "Zoom out" }), button("Fit", () => zoom(null)));
  return make("div", {}, buttons, svg, caption, keyOf(nodes, edges), listed(graph));
}

function zooming(svg, whole) {
  let box;
  const apply = (next) => { box = next; svg.setAttribute("viewBox", box.join(" ")); };
  const move = (x, y) => apply([box[0] + x * box[2], box[1] + y * box[3], box[2], box[3]]);
  function zoom(by, x = 0.5, y = 0.5) {
    if (by === null) return apply([...whole]);
    const wide = Math.min(whole[2] * 2, Math.max(60, box[2] * by)), scale = wide / box[2];
    return apply([box[0] + box[2] * (1 - scale) * x, box[1] + box[3] * (1 - scale) * y, wide, box[3] * scale]);
  }
  const keys = { "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: () => zoom(null), ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0), ArrowUp: () => move(0, -0.1), ArrowDown: () => move(0, 0.1) };
  svg.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  });
  svg.addEventListener("wheel", (event) => {
    const area = svg.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 0.85 : 1.18, (event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    event.preventDefault();
  }, { passive: false });
  svg.addEventListener("pointermove", (event) => {
    const scale = box[2] / svg.clientWidth;
    if (event.buttons === 1) move((-event.movementX * scale) / box[2], (-event.movementY * scale) / box[3]);
  });
  zoom(null);
  return zoom;
}

function keyOf(nodes, edges) {
  const kinds = KINDS.filter((kind) => nodes.some((node) => node.kind === kind)).map((kind) => `${SIGNS[kind]} ${MEANING[kind]}`);
  if (nodes.some((node) => node.basis)) kinds.push("★ double frame: basis, which would complete the answer");
  if (edges.some(([, , kind]) => kind === ENTAILS)) kinds.push("→ entails");
  if (edges.some(([, , kind]) => kind === CONTRADICTS)) kinds.push("≠ dashed: contradiction");
  if (edges.some(([, , kind]) => kind === STATES)) kinds.push("— states or covers");
  return make("p", { class: "key" }, kinds.map((kind) => make("span", {}, kind)));
}

function listed({ nodes, edges, left }) {
  const verbs = ["entails", "contradicts", "states"];
  const rows = edges.slice(0, 500).map(([from, to, kind]) => make("li", {}, `${nodes[from].label} ${verbs[kind]} ${nodes[to].label}`));
  const more = left + edges.length - rows.length;
  return make("details", {}, make("summary", {}, `Relations as text (${count(edges.length)})`), make("ul", {}, rows), more ? make("p", { class: "note" }, `${count(more)} more are not shown.`) : null);
}
