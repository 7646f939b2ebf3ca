// Where a statement stands in a text: the sentence that has it verbatim, else the one that shares most of its words.
const PLAIN_WORD = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}]|[\p{L}\p{N}]+(?:[.,]\p{N}+)*/gu;
const wordsOf = (text) => new Set(text.normalize("NFKC").toLowerCase().match(PLAIN_WORD) || []);
const formOf = (text) => text.normalize("NFKC").toLowerCase().replace(/\s+/g, " ").trim().replace(/[.;:,!?。]+$/u, "");

function sentencesOf(text) {
  if (!("Segmenter" in Intl)) return text.split(/(?<=[.!?。]\s)/u);
  return [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(text)].map((part) => part.segment);
}

// Its place among the sentences and whether it is verbatim; null where none shares that part of the words.
function findSentence(statement, sentences, least = 0) {
  const form = formOf(statement), wanted = wordsOf(statement);
  const verbatim = form ? sentences.findIndex((one) => formOf(one.text).includes(form)) : -1;
  if (verbatim >= 0) return { place: verbatim, verbatim: true };
  let best = { place: -1, shared: 0, length: 0 };
  sentences.forEach((one, place) => {
    const shared = [...wanted].filter((word) => one.words.has(word)).length;
    if (shared > best.shared || (shared === best.shared && one.text.length < best.length)) best = { place, shared, length: one.text.length };
  });
  return best.shared > 0 && best.shared >= least * wanted.size ? { place: best.place, verbatim: false } : null;
}
const prepared = (text) => sentencesOf(text).map((one) => ({ text: one, words: wordsOf(one) }));

// A text with the sentences of some statements marked by their numbers; statements are [number, text].
function marked(text, statements, least) {
  const sentences = prepared(text), found = sentences.map(() => []);
  for (const [number, statement] of statements) {
    const where = findSentence(statement, sentences, least);
    if (where) found[where.place].push(number);
  }
  return sentences.map((one, place) => {
    if (!found[place].length) return one.text;
    const body = one.text.trimEnd();
    const numbers = found[place].filter((number) => number !== null).join(", ");
    const note = numbers ? make("sup", { title: `says statement ${numbers}` }, numbers) : null;
    return [make("mark", {}, body, note), one.text.slice(body.length)];
  });
}
