"""Measure how far the prose of a Python project is from plain technical English.

The prose is what people read: docstrings, comments, Markdown pages, error messages, help texts. Two kinds of measure:

* Rules: regular expressions for constructions that the style guide rejects. Each has a name, a reason and a rate
  (matches in 100 sentences). ``check`` compares the rates with those of reference projects.
* Surprisal: bits per token under a trigram model of function words, trained on reference projects. Content words are
  replaced with their word class, so the topic does not matter. Odd word order and odd function words cost bits, and
  shortening a sentence does not help, because the figure is per token.

Commands::

    english_check.py measure PATH... [--depth N]     a table of rates by folder
    english_check.py worst PATH... [-n 60]           the sentences with most findings
    english_check.py list PATH... [--rule NAME]      one line for each finding: file:line: rule: sentence
    english_check.py keywords PATH...                words and pairs that are more frequent here than in the reference
    english_check.py names PATH...                   names that do not say what they are
    english_check.py train PATH... --model FILE      build the reference model
    english_check.py list-over PATH...               the files over budget, in the form of the committed list
    english_check.py check PATH...                   exit 1 if the list of files over budget is wrong

Only the standard library is used.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.english.prose import KINDS, Sentence, passages_of, sentences_of
from tests.english.rules import RULE_NAMES, findings

# --- Surprisal ------------------------------------------------------------------------------------------------------

_SUFFIXES = ("ing", "ed", "ly", "tion", "ment", "ness", "ity", "able", "er", "est", "s")
CLOSED = set(
    """a an the this that these those it its they them their he she his her we us our you your i me my one ones who whom
    whose which what whatever whoever when where why how whether if unless until while because since although though as so
    than and or but nor yet both either neither not no none nothing nobody anything anybody something somebody someone
    everything everyone all any some each every many much few several most more less least other others another such same
    own only alone also too very just even still already again anew once twice then there here now ever never always often
    of to in on at by for from with without within into onto out over under above below between among beside besides
    behind before after during through across along against about around beyond up down off near per via toward towards
    is are was were be been being am do does did done doing have has had having can could may might must shall should will
    would let lets get gets got make makes made take takes took taken give gives gave given come comes came go goes went
    say says said tell tells told ask asks asked know knows known see sees seen read reads write writes written find finds
    found keep keeps kept leave leaves left hold holds held stand stands lie lies stay stays end ends begin begins else
    first last next new old long so-called whole part way ways instead rather otherwise therefore however thus hence
    return returns raise raises use uses used using need needs set sets run runs example note default see""".split()
)


def skeleton(sentence: Sentence) -> list[str]:
    """Return the sentence with its content words replaced with classes such as ``_ing`` or ``_x``."""
    out = []
    for token in re.findall(r"CODE|[A-Za-z][A-Za-z'’-]*|\d[\d.,]*|[,;:()?!—–]", sentence.text):
        low = token.lower()
        if token == "CODE":
            out.append("_code")
        elif token[0].isdigit():
            out.append("_num")
        elif low in CLOSED or not token[0].isalpha():
            out.append(low)
        elif token[0].isupper() and out:
            out.append("_name")
        else:
            out.append("_" + next((suffix for suffix in _SUFFIXES if low.endswith(suffix)), "x"))
    return out


class Trigrams:
    """A trigram model with interpolated absolute discounting."""

    DISCOUNT = 0.75

    def __init__(self) -> None:
        self.counts: list[Counter[tuple[str, ...]]] = [Counter(), Counter(), Counter()]

    def train(self, sentences: Iterable[Sentence]) -> Trigrams:
        for sentence in sentences:
            tokens = ["<s>", "<s>", *skeleton(sentence), "</s>"]
            for place in range(2, len(tokens)):
                for size in (1, 2, 3):
                    self.counts[size - 1][tuple(tokens[place - size + 1 : place + 1])] += 1
        self._prepare()
        return self

    def _prepare(self) -> None:
        self.total = sum(self.counts[0].values())
        self.contexts: list[Counter[tuple[str, ...]]] = [Counter(), Counter()]
        self.kinds: list[Counter[tuple[str, ...]]] = [Counter(), Counter()]
        for size in (1, 2):
            for gram, count in self.counts[size].items():
                self.contexts[size - 1][gram[:-1]] += count
                self.kinds[size - 1][gram[:-1]] += 1

    def probability(self, gram: tuple[str, ...]) -> float:
        if len(gram) == 1:
            return (self.counts[0][gram] + 0.5) / (self.total + 0.5 * (len(self.counts[0]) + 1))
        size = len(gram) - 1
        seen = self.contexts[size - 1][gram[:-1]]
        lower = self.probability(gram[1:])
        if not seen:
            return lower
        own = max(self.counts[size][gram] - self.DISCOUNT, 0) / seen
        return own + self.DISCOUNT * self.kinds[size - 1][gram[:-1]] / seen * lower

    def bits(self, sentence: Sentence) -> tuple[float, int]:
        """Return the bits of a sentence and its number of tokens."""
        tokens = ["<s>", "<s>", *skeleton(sentence), "</s>"]
        grams = [tuple(tokens[place - 2 : place + 1]) for place in range(2, len(tokens))]
        return -sum(math.log2(self.probability(gram)) for gram in grams), len(grams)

    def save(self, path: Path) -> None:
        data = [{" ".join(gram): count for gram, count in counter.items()} for counter in self.counts]
        path.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))

    @classmethod
    def load(cls, path: Path) -> Trigrams:
        model = cls()
        data = json.loads(gzip.decompress(path.read_bytes()))
        model.counts = [Counter({tuple(key.split(" ")): count for key, count in part.items()}) for part in data]
        model._prepare()
        return model


# --- Measures -------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """The sums of a group of sentences."""

    sentences: int = 0
    words: int = 0
    marked: int = 0
    over_25: int = 0
    over_35: int = 0
    bits: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.rules: Counter[str] = Counter()

    def add(self, sentence: Sentence, model: Trigrams | None) -> None:
        length = len(sentence.words)
        found = findings(sentence)
        self.sentences += 1
        self.words += length
        self.over_25 += length > 25
        self.over_35 += length > 35
        self.marked += any(name != "joined" for name in found)
        self.rules.update(dict.fromkeys(found, 1))
        if model:
            bits, tokens = model.bits(sentence)
            self.bits += bits
            self.tokens += tokens

    def row(self) -> dict[str, float]:
        count = max(self.sentences, 1)
        row = {
            "sentences": self.sentences,
            "words": self.words,
            "words/s": round(self.words / count, 1),
            "marked %": round(100 * self.marked / count, 1),
            ">25 %": round(100 * self.over_25 / count, 1),
            ">35 %": round(100 * self.over_35 / count, 1),
            "bits": round(self.bits / self.tokens, 2) if self.tokens else 0.0,
        }
        return row | {name: round(100 * self.rules[name] / count, 1) for name in RULE_NAMES}


def _is_skipped(folder: str) -> bool:
    """Return True for hidden folders and for those that builds write."""
    return folder in ("build", "dist", "site") or (folder.startswith(".") and folder != "..")


def files_of(paths: Sequence[str], exclude: str | None = None) -> list[Path]:
    """Return the Python and Markdown files of paths, sorted."""
    found: set[Path] = set()
    for path in map(Path, paths):
        found |= {path} if path.is_file() else {p for p in path.rglob("*") if p.suffix in {".py", ".md", ".qmd"}}
    kept = sorted(p for p in found if not any(_is_skipped(part) for part in p.parts))
    return [p for p in kept if not (exclude and re.search(exclude, str(p)))]


def read(paths: Sequence[str], exclude: str | None = None, kinds: Sequence[str] = KINDS) -> list[Sentence]:
    """Return all sentences of the files."""
    return [
        sentence
        for path in files_of(paths, exclude)
        for passage in passages_of(path)
        if passage.kind in kinds
        for sentence in sentences_of(passage)
    ]


def measure(sentences: Iterable[Sentence], key, model: Trigrams | None) -> dict[str, Figures]:
    groups: dict[str, Figures] = defaultdict(Figures)
    for sentence in sentences:
        groups[key(sentence)].add(sentence, model)
    return dict(sorted(groups.items()))


def print_table(groups: dict[str, Figures], names: Sequence[str] | None = None) -> None:
    rows = {key: figures.row() for key, figures in groups.items()}
    names = names or list(next(iter(rows.values())))
    print("| group | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    for key, row in rows.items():
        print(f"| {key} | " + " | ".join(f"{row[name]:g}" for name in names) + " |")


# --- Commands -------------------------------------------------------------------------------------------------------


def _group_key(depth: int, root: str):
    def key(sentence: Sentence) -> str:
        parts = Path(sentence.path).parts
        base = len(Path(root).parts)
        return "/".join(parts[base : base + depth]) if depth else "all"

    return key


def _worst(sentences: Sequence[Sentence], count: int, model: Trigrams | None) -> None:
    def weight(sentence: Sentence) -> float:
        return sum(findings(sentence).values()) / math.sqrt(max(len(sentence.words), 8))

    for sentence in sorted(sentences, key=weight, reverse=True)[:count]:
        found = ", ".join(findings(sentence))
        print(f"{sentence.path}:{sentence.line}: [{sentence.kind}] {found}\n    {sentence.text}")


def _keywords(sentences: Sequence[Sentence], model: Trigrams, count: int) -> None:
    """Print the closed-class words and pairs with the largest log-odds ratio against the reference."""
    for size in (1, 2):
        here: Counter[tuple[str, ...]] = Counter()
        for sentence in sentences:
            tokens = ["<s>", *skeleton(sentence)]
            here.update(tuple(tokens[i : i + size]) for i in range(1 if size == 1 else 0, len(tokens) - size + 1))
        there = model.counts[size - 1]
        n, m = sum(here.values()), sum(there.values())
        scores = []
        for gram, a in here.items():
            b = there[gram]
            prior = 0.01 * (a + b) * (1000 / (n + m)) + 0.5
            odds = math.log((a + prior) / (n - a)) - math.log((b + prior) / (m - b))
            scores.append((odds / math.sqrt(1 / (a + prior) + 1 / (b + prior)), gram, a / n * 1000, b / m * 1000))
        print(f"\n{size}-grams: z, per 1,000 tokens here, per 1,000 in the reference")
        for z, gram, mine, theirs in sorted(scores, reverse=True)[:count]:
            print(f"{z:7.1f}  {' '.join(gram):25} {mine:8.2f} {theirs:8.2f}  x{mine / max(theirs, 0.01):.1f}")


def _state(paths: Sequence[str], exclude: str | None, model: Trigrams | None) -> dict[str, dict[str, float]]:
    groups = measure(read(paths, exclude), lambda sentence: sentence.path, model)
    return {
        key: {
            "marked": f.marked,
            "sentences": f.sentences,
            "words": f.words,
            "over_25": f.over_25,
            "bits": round(f.bits, 1),
            "tokens": f.tokens,
        }
        for key, f in groups.items()
    }


# The budget of a file: the 95th percentile of the 791 files of splink, datatrove, inspect_ai and narwhals that have ten
# sentences or more. Lower one only with a new measurement.
MARKED, BITS, OVER_25 = 0.15, 5.5, 0.30

# Files with fewer sentences say too little by themselves and are judged by folder.
LEAST = 5


def _check(paths: Sequence[str], exclude: str | None, model: Trigrams | None, over_budget: Path) -> int:
    """Print the files whose state differs from the list of files over budget, and return the exit code.

    A file outside the list must meet the budget. A file that meets the budget must leave the list.
    """
    listed = set(over_budget.read_text(encoding="utf-8").splitlines())
    over = {path: figures for path, row in _pooled(_state(paths, exclude, model)).items() if (figures := _excess(row))}
    problems = [f"{path}: {figures}" for path, figures in sorted(over.items()) if path not in listed]
    problems += [f"{path}: meets the budget; remove it from {over_budget}" for path in sorted(listed - set(over))]
    print("\n".join(problems) or f"ok: {len(over)} files are over budget, as listed")
    return 1 if problems else 0


def _excess(row: dict[str, float]) -> str:
    """Return the measures of a file that exceed the budget, as text."""
    limits = {"marked": MARKED, "over_25": OVER_25, "bits": BITS}
    values = {name: _rate(row, name) for name in limits}
    return "; ".join(
        f"{name} {value:.2f}, at most {limits[name]:.2f}"
        for name, value in values.items()
        if value is not None and value > limits[name] + 0.005
    )


def _pooled(state: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the state with the small files of each folder added up."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for path, row in state.items():
        small = row["sentences"] < LEAST
        groups[f"{Path(path).parent}/ (small files)" if small else path].update(row)
    return {path: dict(row) for path, row in groups.items()}


def _rate(row: dict[str, float] | None, name: str) -> float | None:
    if row is None or row["sentences"] < LEAST:
        return None
    return row[name] / (max(row["tokens"], 1) if name == "bits" else row["sentences"])


# Words that are a whole name in no reference project, and mean several things in this one.
VAGUE = set(
    """ask answer take give say tell told hear look find found known held kept made drawn asked judged left listed
    named said used wanted weighed written whole news night reach room turns use uses visit words points facts reliance
    leaning lending standing stretch course bear bury hire hurry feed enter ending beside at of on over between ahead
    aside among due each one more most less likely own rest plain bare real thing texts lines line rows places parts
    ends kind form forms figures figure""".split()
)


def _names(paths: Sequence[str], exclude: str | None) -> None:
    """Print single-word names, and names of modules and classes that several things share."""
    modules: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[str]] = defaultdict(list)
    functions: list[tuple[str, str]] = []
    for path in files_of(paths, exclude):
        if path.suffix != ".py":
            continue
        if path.stem != "__init__":
            modules[path.stem].append(str(path))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].append(f"{path}:{node.lineno}")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
                functions.append((node.name.lstrip("_"), f"{path}:{node.lineno}"))
    single = [name for name, _ in functions if "_" not in name]
    vague = [(name, place) for name, place in functions if name in VAGUE]
    print(f"functions {len(functions)}, of one word {len(single)}, vague {len(vague)}")
    print(
        f"classes {sum(map(len, classes.values()))}, of one word "
        f"{sum(len(v) for k, v in classes.items() if len(re.findall('[A-Z][a-z0-9]*', k)) < 2)}"
    )
    for title, table in (("module", modules), ("class", classes)):
        for name, places in sorted(table.items(), key=lambda item: -len(item[1])):
            if len(places) > 1 or name.lower() in VAGUE:
                print(f"{title} {name}: {len(places)}x {', '.join(places)}")
    for name, count in Counter(name for name, _ in vague).most_common(60):
        print(f"function {name}: {count}x, first {next(place for other, place in vague if other == name)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices="measure worst list keywords names train list-over check".split())
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("reference.json.gz"))
    parser.add_argument("--depth", type=int, default=1, help="folder levels below the first path that form a group")
    parser.add_argument("--by-kind", action="store_true", help="group by kind of prose instead of by folder")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--exclude", help="regular expression of paths to leave out")
    parser.add_argument("--rule", choices=RULE_NAMES)
    parser.add_argument("-n", type=int, default=60)
    parser.add_argument("--over-budget", type=Path, default=Path(__file__).with_name("over_budget.txt"))
    options = parser.parse_args(arguments)
    model = Trigrams.load(options.model) if options.command != "train" and options.model.exists() else None
    if options.command == "names":
        _names(options.paths, options.exclude)
        return 0
    if options.command == "check":
        return _check(options.paths, options.exclude, model, options.over_budget)
    if options.command == "list-over":
        state = _pooled(_state(options.paths, options.exclude, model))
        print("\n".join(sorted(path for path, row in state.items() if _excess(row))))
        return 0
    sentences = read(options.paths, options.exclude, options.kinds.split(","))
    if options.command == "train":
        Trigrams().train(sentences).save(options.model)
    elif options.command == "measure":
        key = (lambda s: s.kind) if options.by_kind else _group_key(options.depth, options.paths[0])
        print_table(measure(sentences, key, model))
    elif options.command == "worst":
        _worst(sentences, options.n, model)
    elif options.command == "keywords":
        assert model, "no reference model"
        _keywords(sentences, model, options.n)
    else:
        for sentence in sentences:
            for name in findings(sentence):
                if options.rule in (None, name):
                    print(f"{sentence.path}:{sentence.line}: {name}: {sentence.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
