"""What the papers print of coverage, beside what a study found: tables of a report. Methods, section 6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from untold.jobs.study.coverage_rows import BY_QUERY, KAPPA
from untold.jobs.study.markdown import Row, number, section
from untold.udfs.statistics.correlation import COEFFICIENTS

Key = tuple[str | None, str]
# Samarinas et al. 2025; what is not printed for a row is None. Correlations are of ICAT-S with a 70B aligner
ICAT, IMPORTANCE, LONGRECALL = "icat", "importance", "longrecall"
ICAT_CORRELATIONS = {
    "a corpus (ClueWeb)": {"pearson": 0.422, "spearman": 0.446, "kendall": 0.368},
    "web search": {"pearson": 0.525, "spearman": 0.443, "kendall": 0.358},
}
ICAT_ITEMS = {"precision": 0.903, "recall": 0.798, "f1": 0.835}
ICAT_KAPPA = 0.829
ICAT_BASELINES = {"bertscore_recall": 0.291, "meteor": 0.027, "rouge1": -0.058, "bleu": -0.099}
ICAT_NOTE = (
    "Published (Samarinas et al. 2025) of responses to topics of the TREC Web Track, with ClueWeb or a web search as "
    "the source. ClueWeb and the paper's human labels are not at hand: these figures are of other samples than ours, "
    "and show only how large such figures are. Which coefficient the published baselines are is not known here."
)
# By data set and answering model: precision, recall and F1 of its answers in per cent, means over prompts
IMPORTANCE_MEANS = {
    ("biographies", "GPT-4o-mini"): (13.3, 9.1, 8.2),
    ("biographies", "Gemini-2.5-flash-lite"): (14.1, 10.9, 9.4),
    ("LongFact", "GPT-4o-mini"): (38.6, 42.6, 36.8),
    ("LongFact", "Gemini-2.5-flash-lite"): (28.6, 44.4, 30.4),
    ("LongForm", "Llama-3.1-70B"): (27.7, 8.5, 8.9),
}
IMPORTANCE_NOTE = (
    "Published (importance-aware recall, 2026) of answers of other systems to other prompts: means over prompts, so "
    "that F1 is no harmonic mean of the other two. Ours are the means of this study's outputs, over their samples."
)
LONGRECALL_SETS = ("QAMPARI", "RoMQA", "ExpertQA")
LONGRECALL_F1 = {
    "longrecall, Qwen-2.5-32B": (LONGRECALL, (0.91, 0.88, 0.55)),
    "longrecall, Gemini": (LONGRECALL, (0.86, 0.80, 0.53)),
    "holistic": ("holistic", (0.52, 0.36, 0.42)),
    "arecall, or erecall": ("arecall", (0.78, 0.66, 0.01)),
    "longrecall, challenging subset": (LONGRECALL, (0.76, 0.74, 0.64)),
}
LONGRECALL_KAPPAS = {
    "of annotators": (KAPPA, (0.83, 0.85)),
    "of majorities": ("fleiss_kappa_majorities", (0.87, 0.85)),
}
LONGRECALL_NOTE = (
    "Published (LongRecall) of 900 labelled references of each data set, and of 300 challenging ones; candidates were "
    "missed for 2-4 % of the references. Those labels are not at hand: they show only how large such figures are."
)


def published(rows: Sequence[Row], means: Mapping[str, Mapping[str, float | None]]) -> list[str]:
    """A section a paper whose metric the study has; that of ICAT, which has baselines, where it has none of the others.

    rows: of the table `meta_evaluation`; means: by model, of the measures of importance.
    """
    metrics = {row["metric"] for row in rows}
    by_key: dict[Key, dict[str | None, Row]] = {}
    for row in rows:
        if row.get("level") != BY_QUERY:
            by_key.setdefault((row["metric"], row["measure"]), {})[row["model"]] = row
    parts = []
    if IMPORTANCE in metrics:
        parts.append(_importance(means))
    if LONGRECALL in metrics:
        parts.append(_longrecall(by_key))
    if ICAT in metrics or not parts:
        parts.append(_icat(by_key))
    return parts


def _icat(by_key: Mapping[Key, Mapping[str | None, Row]]) -> str:
    lines = []
    for source, figures in ICAT_CORRELATIONS.items():
        for name in COEFFICIENTS:
            lines.append([f"{name} of ICAT-S, {source}", _ours(by_key, ICAT, name), f"{figures[name]:.3f}"])
    for name, value in ICAT_ITEMS.items():
        lines.append([f"{name} of covered aspects", _ours(by_key, ICAT, f"{name}_macro"), f"{value:.3f}"])
    lines.append(["Fleiss' kappa of annotators", _ours(by_key, None, KAPPA), f"{ICAT_KAPPA:.3f}"])
    for name, value in ICAT_BASELINES.items():
        lines.append([f"correlation of {name} (ours: pearson)", _ours(by_key, name, "pearson"), f"{value:.3f}"])
    return section("Published", ICAT_NOTE, ["figure", "here", "published"], lines)


def _importance(means: Mapping[str, Mapping[str, float | None]]) -> str:
    lines = [[f"here: {model}", *_percent(own)] for model, own in means.items()]
    for (data, system), figures in IMPORTANCE_MEANS.items():
        lines.append([f"{data}, {system}", *(f"{value:.1f}" for value in figures)])
    heads = ["answers", "precision %", "recall %", "F1 %"]
    return section("Published: importance", IMPORTANCE_NOTE, heads, lines)


def _percent(means: Mapping[str, float | None]) -> list[str]:
    values = [means.get(name) for name in ("precision", "recall", "f1")]
    return ["-" if value is None else f"{100 * value:.1f}" for value in values]


def _longrecall(by_key: Mapping[Key, Mapping[str | None, Row]]) -> str:
    lines = []
    for name, (metric, figures) in LONGRECALL_F1.items():
        for data, value in zip(LONGRECALL_SETS, figures, strict=True):
            lines.append([f"F1, {name}, {data}", _ours(by_key, metric, "f1_micro"), f"{value:.2f}"])
    for name, (measure, values) in LONGRECALL_KAPPAS.items():
        owner = None if measure == KAPPA else LONGRECALL
        shown = ", ".join(f"{value:.2f}" for value in values)
        lines.append([f"Fleiss' kappa {name}", _ours(by_key, owner, measure), shown])
    heads = ["figure", "here, pooled", "published"]
    return section("Published: LongRecall", LONGRECALL_NOTE, heads, lines)


def _ours(by_key: Mapping[Key, Mapping[str | None, Row]], metric: str | None, measure: str) -> str:
    """Our figure, or those of all models, in their order; `-` without one."""
    values = [row["value"] for row in by_key.get((metric, measure), {}).values()]
    return ", ".join(map(number, values)) or "-"
