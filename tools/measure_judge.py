"""Print the measures of the judge on labels of people that it was not trained on.

    python tools/measure_judge.py --k-qa data/k_qa --realsumm held_back.jsonl.gz --wikicontradict data/wikicontradict

A row is printed for each option. K-QA is a folder with `NLI_medical_annotator.csv`; the label of a statement is the
majority of three physicians. REALSumm is a gzipped file of JSON Lines with `text`, `fact`, `label` and `document`.
WikiContradict is a folder with `wiki_contradict_simple_humaneval.jsonl`.

AUC, Cohen's kappa at .5, Pearson's correlation between the shares of covered facts per text, and the expected
calibration error have 95 % bootstrap intervals over documents. The score of an answer of WikiContradict is the share of
the contexts' sentences that the answer, behind its question, states. Its kappa compares the three labels (methods,
section 6).

The last row of K-QA and REALSumm is about `untold estimate`: people judge two fifths of the texts at random, and the
judge's shares of all texts are the proxy. It has the mean worth of the judged texts over 500 draws (`--draws`), and
the share of intervals that contain the mean of all human judgements.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from judge_measures import Flags, Labelled, Numbers, area, calibration_error, interval
from numpy.typing import NDArray

import untold
from untold.jobs.compare import estimate
from untold.jobs.run_tables import RunTables
from untold.jobs.summary.estimating import EstimateRequest, open_proxy
from untold.udfs.recall.segmentation import sentences
from untold.udfs.statistics.confusion import LABELS, PREDICTIONS, kappa, predict_label, under_convention

THRESHOLD = 0.5
ANSWERS_PER_ROW = 5
# The share of judged texts and the seed of the rows about `untold estimate`
JUDGED_SHARE, SEED = 0.4, 17


def read_k_qa(folder: Path) -> Labelled:
    """Return the statements of K-QA with the majority of the physicians."""
    with open(folder / "NLI_medical_annotator.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    holds = np.array([row["majority_label"] == "Entailment" for row in rows])
    return Labelled(
        [row["answer"] for row in rows], [row["claim"] for row in rows], holds, [row["Question"] for row in rows]
    )


def read_pairs(path: Path) -> Labelled:
    """Return the pairs of a file of JSON Lines; `supported` and `entailment` hold."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    holds = np.array([row["label"] in ("supported", "entailment") for row in rows])
    documents = [str(row["document"]) for row in rows]
    return Labelled([row["text"] for row in rows], [row["fact"] for row in rows], holds, documents)


def probabilities_of(
    texts: Sequence[str], facts: Sequence[str], queries: str | Sequence[str] = ""
) -> tuple[Numbers, float]:
    """Return the probabilities of pairs and the speed in pairs per second. A missing probability counts as 0."""
    untold.judge(texts[:1], facts[:1])
    began = time.perf_counter()
    found = untold.judge(texts, facts, queries)
    seconds = time.perf_counter() - began
    unjudged = int(np.isnan(found).sum())
    if unjudged:
        print(f"{unjudged} of {len(found)} pairs have no probability and count as 0")
    return np.nan_to_num(found), len(found) / seconds


def agreement(predicted: Flags, holds: Flags) -> float:
    """Return Cohen's kappa of two classes."""
    table = np.zeros((2, 2), dtype=np.int64)
    np.add.at(table, (holds.astype(int), predicted.astype(int)), 1)
    return float(kappa(table))


def correlation(predicted: Flags, holds: Flags, owners: NDArray[np.int64]) -> float:
    """Return Pearson's correlation between the shares of covered facts per text, NaN if one side is constant."""
    owner = np.unique(owners, return_inverse=True)[1]
    sizes = np.bincount(owner)
    shares = [np.bincount(owner, weights=side) / sizes for side in (predicted, holds)]
    return float(np.corrcoef(*shares)[0, 1]) if min(map(np.ptp, shares)) > 0 else float("nan")


def print_pairs(name: str, data: Labelled, draws: int, queries: str | Sequence[str] = "") -> None:
    """Judge pairs, each text behind its query if there is one, and print their measures."""
    scores, speed = probabilities_of(data.texts, data.facts, queries)
    predicted, holds = scores >= THRESHOLD, data.holds
    texts = {text: number for number, text in enumerate(dict.fromkeys(data.texts))}
    owners = np.array([texts[text] for text in data.texts])
    measures: dict[str, Callable[[NDArray[np.int64]], float]] = {
        "AUC": lambda rows: area(scores[rows], holds[rows]),
        "kappa": lambda rows: agreement(predicted[rows], holds[rows]),
        "Pearson per text": lambda rows: correlation(predicted[rows], holds[rows], owners[rows]),
        "calibration error": lambda rows: calibration_error(scores[rows], holds[rows]),
    }
    everything = np.arange(len(scores))
    figures = [figure(label, measure(everything), measure, data.documents) for label, measure in measures.items()]
    print(f"{name}: {len(scores)} pairs, {'; '.join(figures)}; {speed:.0f} pairs a second", flush=True)
    print_estimates(name, predicted, holds, owners, data.documents, draws)


def print_estimates(
    name: str, predicted: Flags, holds: Flags, owners: NDArray[np.int64], groups: Sequence[str], draws: int
) -> None:
    """Estimate the mean human score of all texts from draws of some, and print the gain and the coverage.

    `owners` has the number of the text of each pair, and `groups` its document or question.
    """
    sizes = np.bincount(owners)
    scores, people = (np.bincount(owners, weights=side) / sizes for side in (predicted, holds))
    group_of = dict(zip(owners.tolist(), groups, strict=True))
    judged, random = round(JUDGED_SHARE * len(sizes)), np.random.default_rng(SEED)
    worth, covered = [], []
    with tempfile.TemporaryDirectory() as folder:
        proxy, labels = Path(folder) / "proxy.csv", Path(folder) / "labels.csv"
        _write_csv(proxy, [(one, scores[one], group_of[one]) for one in range(len(sizes))])
        run = open_proxy(str(proxy), RunTables("", {}))
        for _ in range(draws):
            drawn = random.choice(len(sizes), judged, replace=False).tolist()
            _write_csv(labels, [(one, people[one], group_of[one]) for one in drawn])
            row = estimate(EstimateRequest(run, labels=str(labels)))["estimates"][0]
            worth.append(row["effective_sample_size"])
            covered.append(row["ci_low"] <= people.mean() <= row["ci_high"])
    saved = 1 - judged / np.mean(worth)
    print(
        f"{name}: {judged} of {len(sizes)} texts judged by people are worth {np.mean(worth):.0f}, which saves "
        f"{saved:.0%} of the judgements; {np.mean(covered):.1%} of {draws} intervals contain the mean of all",
        flush=True,
    )


def _write_csv(path: Path, rows: Sequence[tuple[int, float, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("sample_id", "score", "query"))
        writer.writerows(rows)


def print_wikicontradict(folder: Path) -> None:
    """Score the answers of WikiContradict by the sentences of the contexts, and print kappa of their labels."""
    with open(folder / "wiki_contradict_simple_humaneval.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts, facts, queries, owners, labels, questions = [], [], [], [], [], []
    for row in rows:
        statements = [one for key in ("context1", "context2") for one in sentences(row[f"{key}_self_contained"]) if one]
        for number in range(ANSWERS_PER_ROW):
            owners += [len(labels)] * len(statements)
            texts += [row[f"answer{number}"]] * len(statements)
            facts += statements
            queries += [row["question"]] * len(statements)
            labels.append(label_of(row, number))
            questions.append(row["question"])
    scores, speed = probabilities_of(texts, facts, queries)
    shares = np.bincount(owners, weights=scores >= THRESHOLD) / np.bincount(owners)
    cells = np.array(
        [
            (LABELS.index(label), PREDICTIONS.index(predict_label(share)))
            for label, share in zip(labels, shares, strict=True)
        ]
    )

    def measure(chosen: NDArray[np.int64]) -> float:
        table = np.zeros((len(LABELS), len(PREDICTIONS)), dtype=np.int64)
        np.add.at(table, tuple(cells[chosen].T), 1)
        return float(kappa(under_convention(table, "mismatch")))

    printed = figure("kappa", measure(np.arange(len(cells))), measure, questions)
    print(f"WikiContradict: {len(cells)} answers, {printed}; {speed:.0f} pairs a second", flush=True)


def label_of(row: dict[str, str], number: int) -> str:
    """Return the label of an answer. An answer from one context is at most partially correct, as published."""
    label = row[f"label{number}"]
    return "Partially correct" if number in (1, 2) and label == "Correct" else label


def figure(name: str, value: float, measure: Callable[[NDArray[np.int64]], float], documents: Sequence[str]) -> str:
    """Return a measure with its interval as text."""
    low, high = interval(measure, documents)
    return f"{name} {value:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Read the options and print a row for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k-qa", type=Path, help="folder of K-QA")
    parser.add_argument("--realsumm", type=Path, help="held-back pairs of REALSumm, gzipped JSON Lines")
    parser.add_argument("--wikicontradict", type=Path, help="folder of WikiContradict")
    parser.add_argument("--draws", type=int, default=500, help="draws of judged texts")
    options = parser.parse_args()
    if options.k_qa:
        statements = read_k_qa(options.k_qa)
        print_pairs("K-QA", statements, options.draws)
        print_pairs("K-QA, behind the question", statements, options.draws, statements.documents)
    if options.realsumm:
        print_pairs("REALSumm, held back", read_pairs(options.realsumm), options.draws)
    if options.wikicontradict:
        print_wikicontradict(options.wikicontradict)


if __name__ == "__main__":
    main()
