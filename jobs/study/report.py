"""Render the reports of studies of labels and of coverage, and the figure of labels. Equal rows give equal bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from untold.graph.plotting import draw_picture, new_figure
from untold.graph.views import one_line
from untold.jobs.study import rendering
from untold.jobs.study.coverage_rows import (
    AGREEMENTS,
    F1_PAIRS,
    KAPPA,
    MAJORITIES_KAPPA,
    MODELS_KAPPA,
    PAIRS,
    ItemLabels,
)
from untold.jobs.study.judgements import BY_QUERY, BY_SAMPLE, Owner, Row
from untold.jobs.study.meta_evaluation import COSTS, Cost, cost_cells
from untold.jobs.study.rendering import (
    DEJL,
    PUBLISHED_CONVENTION,
    Columns,
    document,
    figure_key,
    find_published,
    has_published_convention,
    interval,
    intervals,
    markdown_cell,
    markdown_table,
    number,
    pivot,
    published_figures,
    published_section,
    section,
)
from untold.udfs.statistics.confusion import CONVENTIONS, LABELS, PREDICTIONS
from untold.udfs.statistics.correlation import COEFFICIENTS
from untold.udfs.statistics.intervals import IntArray
from untold.udfs.statistics.item_agreement import AVERAGES, MEASURES

# The colours of Okabe and Ito, which colour-blind people can distinguish
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
BASELINE_STYLES = {"baseline_constant": ("dashed", "constant label"), "baseline_overlap": ("dotted", "token overlap")}
# The width of a group of bars, if the distance between groups is 1
GROUP_WIDTH = 0.8
MEASURE_HEADS = {
    "lmr": "LMR",
    "lmr_strict": "strict",
    "lmr_lax": "lax",
    "kappa": "kappa",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "baseline_constant": "constant label",
    "baseline_overlap": "token overlap",
}
MATCH_RATES = ("lmr", "lmr_strict", "lmr_lax")
# The published measures in the report of several data sets, and the data set of the published means
COMBINED, ELI5 = ("lmr", "lmr_spread", "mean"), "eli5"
# Baselines have no interval in the report
WITHOUT_INTERVAL = tuple(BASELINE_STYLES)
PUBLISHED_NOTE = (
    "Published (Dejl et al. 2025): label match rates under the relevance threshold 3.5. For Llama 3.3, Llama 4 and "
    "Qwen, Q&A has the quantity tool. The spread is the population standard deviation over these five models. Q&A and "
    "E2E are above NLI for every model (p < 0.05)."
)
ELI5_NOTE = (
    " For `eli5`, the mean is the comprehensiveness of the responses of a model to 500 questions. gpt-oss-20b judges "
    "for Q&A, and Llama 4 for E2E."
)


def render(
    rows: Sequence[Row],
    comparisons: Sequence[Row],
    confusions: Mapping[tuple[str, str], IntArray],
    costs: Mapping[Owner, Cost],
    *,
    clustered: bool,
    note: str | None = None,
) -> str:
    """Return the report of a study of labels as Markdown.

    Args:
        rows: The table `meta_evaluation`.
        comparisons: The table `comparisons`.
        confusions: The confusion table of each model and metric, int64[3, 4].
        costs: The costs per sample by model and metric. Existing scores have none.
    """
    units = "whole questions" if clustered else "single rows"
    return document(
        f"Meta-evaluation on {rows[0]['dataset'] if rows else 'nothing'}",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. With `mismatch`, an undefined score agrees with no "
        "label. With `zero`, an undefined score is 0 and failed scores are excluded. With `published`, failed scores "
        "are 0 too. Failed scores, and comparisons with a source without statements, are excluded. Calls, tokens and "
        "cost are per sample, over all starts.",
        f"Note: {note}." if note else "",
        _main_table(rows, costs),
        _published_table(rows),
        tests_table("Metrics compared", [row for row in comparisons if row["metric"] is None], "model"),
        prompts_table([row for row in comparisons if row["metric"] is not None]),
        *[_confusion_table(*owner, table) for owner, table in sorted(confusions.items())],
    )


def _confusion_table(model: str, metric: str, table: IntArray) -> str:
    counts = zip(LABELS, table.tolist(), strict=True)
    rows = [{"label": label, **dict(zip(PREDICTIONS, own, strict=True))} for label, own in counts]
    heading = f"Labels and predictions of {metric}, {markdown_cell(model)}"
    return section(heading, "", ["label", *PREDICTIONS], rows)


def render_averages(rows: Sequence[Row]) -> str:
    """Return the report of several data sets: each LMR, the averages, and the spread of the averages over models."""
    columns: Columns = [
        *(("data set", "dataset"), "metric"),
        ("model", lambda row: row["model"] or "(standard deviation over models)"),
        *("convention", "n", ("LMR", interval), "published"),
    ]
    note = (
        "LMR. Averages count every data set the same; their intervals are 95 % BCa, joint over the data sets, 10,000 "
        "resamples of each."
    )
    metrics = {row["metric"] for row in rows}
    # The paper's figures cover more data sets than the average
    whole = [*rows, *({"dataset": ELI5, "metric": metric, "convention": None} for metric in sorted(metrics))]
    return document(
        "Meta-evaluations together", note, markdown_table(columns, rows), _published_table(whole, COMBINED, ELI5_NOTE)
    )


def _main_table(rows: Sequence[Row], costs: Mapping[Owner, Cost]) -> str:
    """Return the table of the measures and the costs by metric, model and convention."""
    present = {row["measure"] for row in rows}
    columns: Columns = [
        *("metric", "model", "convention", "n", ("left out", "excluded")),
        *((head, partial(_measured, name)) for name, head in MEASURE_HEADS.items() if name in present),
        *(*COSTS, ("published LMR", "published")),
    ]
    # The first row of a metric has its LMR
    found = pivot(rows, MEASURE_HEADS, ("dataset", "metric", "model", "convention"))
    return markdown_table(columns, [{**row, **cost_cells(costs.get((row["model"], row["metric"])))} for row in found])


def _measured(name: str, row: Row) -> str:
    """Return the value of a measure with its interval, if the measure has one."""
    return number(row[name]["value"]) if name in WITHOUT_INTERVAL else interval(row[name])


def _published_table(rows: Sequence[Row], measures: Sequence[str] = MATCH_RATES, more: str = "") -> str:
    """Return the published figures of the metrics of the rows; empty for a data set without published figures."""
    shown = {(row["dataset"], row["metric"]) for row in rows}
    if not {dataset for dataset, _ in shown} & {one["dataset"] for one in published_figures(DEJL)}:
        return ""
    ours = {figure_key(row): interval(row) for row in rows if row["convention"] == PUBLISHED_CONVENTION}
    figures = [
        one
        for one in published_figures(DEJL)
        if (one["dataset"], one["metric"]) in shown and one["measure"] in measures
    ]
    return published_section("Published", PUBLISHED_NOTE + more, figures, lambda one: ours.get(figure_key(one)))


def prompts_table(comparisons: Sequence[Row]) -> str:
    """Return the paired tests of prompts; empty without any."""
    return tests_table("Prompts compared", comparisons, "metric", "model")


def tests_table(heading: str, comparisons: Sequence[Row], *names: str) -> str:
    """Return paired tests as a table that begins with these columns; empty without any."""
    of_items = any(row["convention"] is None for row in comparisons)
    what = "accuracy over the items that both judged" if of_items else "LMR under each convention"
    family = "the table" if of_items else "the tests under one convention"
    note = f"Paired permutation tests of {what}; p adjusted after Benjamini and Hochberg over {family}."
    columns: Columns = [
        *(*names, *(() if of_items else ("convention",)), "first", "second", "n"),
        ("first - second", lambda row: number(row["difference"], 4)),
        ("p", lambda row: number(row["p_value"], 4)),
        ("p adjusted", lambda row: number(row["p_adjusted"], 4)),
    ]
    return section(heading, note, columns, comparisons)


def draw(rows: Sequence[Row], *, form: str = "svg") -> bytes:
    """Return an SVG or a PNG of the LMR with its intervals by metric and model. `rows` as in `render`.

    Has one panel per convention. Lines are baselines. Diamonds are published figures, on the bar of their model or in
    the middle of the metric. Raises ValueError for another format.
    """
    return draw_picture(form, partial(_draw, rows))


def _draw(rows: Sequence[Row]) -> Figure:
    """Return a figure with one panel per convention, and one legend for all."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    # In inches: the width of a panel depends on its number of bars
    width = max(3.2, 0.9 + len(metrics) * (0.5 + 0.3 * len(models)))
    figure = new_figure(len(CONVENTIONS) * width + 2.6, 4.2)
    panels = figure.subplots(1, len(CONVENTIONS), sharey=True)
    for axes, convention in zip(panels, CONVENTIONS, strict=True):
        _draw_panel(axes, [row for row in rows if row["convention"] == convention], metrics, models)
        axes.set_title(f"undefined scores: {convention}", fontsize=10)
    panels[0].set_ylabel("LMR")
    # The panels have equal labels
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(f"Match rate with the labels of {rows[0]['dataset']}" if rows else "nothing to show", fontsize=11)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], metrics: Sequence[str], models: Sequence[str]) -> None:
    """Draw a group of bars per metric, with one bar per model and its interval as a line."""
    bar = GROUP_WIDTH / max(len(models), 1)
    # Groups are at whole numbers, and their bars around the middle
    at = {
        (metric, model): place + (position - (len(models) - 1) / 2) * bar
        for place, metric in enumerate(metrics)
        for position, model in enumerate(models)
    }
    for position, model in enumerate(models):
        shown = [row for row in rows if row["model"] == model and row["measure"] == "lmr" and row["value"] is not None]
        places = [at[row["metric"], model] for row in shown]
        colour = COLOURS[position % len(COLOURS)]
        axes.bar(places, [row["value"] for row in shown], width=0.9 * bar, color=colour, label=one_line(model))
        for place, row in zip(places, shown, strict=True):
            if row["ci_low"] is not None:
                axes.plot([place, place], [row["ci_low"], row["ci_high"]], color="black", linewidth=1.2)
    for measure, (line, name) in BASELINE_STYLES.items():
        value = next((row["value"] for row in rows if row["measure"] == measure), None)
        if value is not None:
            axes.axhline(value, color="#444444", linestyle=line, linewidth=1, label=f"baseline: {name}")
    if any(row["measure"] == "lmr" and has_published_convention(row) for row in rows):
        _draw_published(axes, rows, metrics, models, at)
    axes.set_xticks(range(len(metrics)), [one_line(metric) for metric in metrics])
    # All panels and all reports have one scale
    axes.set_ylim(0, 1)
    axes.set_xlim(-0.6, max(len(metrics), 1) - 0.4)


def _draw_published(
    axes: Axes,
    rows: Sequence[Row],
    metrics: Sequence[str],
    models: Sequence[str],
    at: Mapping[tuple[str, str], float],
) -> None:
    """Draw a diamond per published figure of the data set. `at` are the positions of the bars by metric and model."""
    label, dataset = "published", rows[0]["dataset"]
    for one in published_figures(DEJL):
        if one["metric"] not in metrics or (one["dataset"], one["measure"]) != (dataset, "lmr"):
            continue
        own = [place for (metric, model), place in at.items() if find_published(dataset, metric, model, "lmr") is one]
        # The interval is in the middle of the bar
        beside = GROUP_WIDTH / len(models) / 4
        for place in [place + beside for place in own] or [float(metrics.index(one["metric"]))]:
            axes.scatter(
                [place], [one["value"]], marker="D", s=26, color="white", edgecolors="black", zorder=3, label=label
            )


IMPORTANCE = "importance"
# The heading, the paper and the note by metric
PUBLISHED_NOTES = {
    IMPORTANCE: (
        "Published: importance",
        rendering.IMPORTANCE,
        "Published (Beyond Precision, Jafari et al. 2026) for responses of other systems to other prompts, as means "
        "over prompts. Therefore F1 is not the harmonic mean of the other two. Ours are the means over the samples of "
        "this study.",
    ),
    "longrecall": (
        "Published: LongRecall",
        rendering.LONGRECALL,
        "Published (LongRecall, Ardestani et al. 2025) for 900 labelled references of each data set and 300 "
        "challenging references, with missed candidates for 2-4 % of them. These labels are not available, so the "
        "figures show only the size to expect. f1_pairs is over pairs of a reference and a response fact. If a method "
        "has no pairs, its f1_micro is shown.",
    ),
    "icat": (
        "Published",
        rendering.ICAT,
        "Published (ICAT-S, Samarinas et al. 2025) for responses to topics of the TREC Web Track, with ClueWeb or a "
        "web search as the source and a 70B aligner. ClueWeb and the paper's human labels are not available, so the "
        "figures describe other samples and show only the size to expect.",
    ),
}


def render_coverage(
    tables: Mapping[str, Sequence[Row]],
    labels: ItemLabels,
    covered: Sequence[str],
    means: Sequence[Row],
    subset: str | None,
    costs: Mapping[Owner, Cost],
    *,
    clustered: bool,
    notes: Sequence[str],
) -> str:
    """Return the report of a study of coverage as Markdown.

    Args:
        tables: The rows of `meta_evaluation`, `tiers`, `false_negatives`, and `comparisons` if prompts are compared.
        labels: The counts of the labels.
        covered: The labels that mean covered.
        means: The means of the measures of importance of each model: measure and mean.
        subset: The subset of the references, None for all.
        costs: The costs per sample by model and metric. Existing scores have none.
    """
    rows, misses = tables["meta_evaluation"], tables["false_negatives"]
    units = "whole queries" if clustered else "single samples"
    return document(
        "Meta-evaluation on coverage",
        f"Intervals: 95 % BCa, 10,000 resamples of {units}. p-values assume independent samples. Human coverage is "
        "the share of a sample's labelled items that most annotators found covered.",
        _labels(rows, labels, covered, subset),
        *[f"Note: {note}." for note in notes],
        *[_correlations(rows, level) for level in (BY_SAMPLE, BY_QUERY)],
        _items(rows),
        section(
            "Agreement with the majority",
            "Cohen's kappa, mean F1 of covered and not covered, and accuracy, of all labelled items together.",
            ["metric", "model", "n", *intervals(AGREEMENTS)],
            pivot((row for row in rows if row["model"] is not None), AGREEMENTS),
        ),
        section(
            "Baselines and ceilings of single items",
            "word_overlap is the share of an item's words that occur in the response. constant is one label for all "
            "items. annotator compares one annotator with the majority, which includes the annotator. auc_weight "
            "compares the weights of must-have and nice-to-have references.",
            [("who", "metric"), "model", "measure", ("value", interval), "n"],
            [
                row
                for row in rows
                if row["measure"] == "auc_weight" or (row["measure"] in ("auc", "accuracy") and row["model"] is None)
            ],
        ),
        prompts_table(tables.get("comparisons", ())),
        section(
            "Agreement of models",
            "",
            ["metric", ("Fleiss' kappa", lambda row: _KAPPAS[row["measure"]]), "value", "n", ("left out", "excluded")],
            [row for row in rows if row["measure"] in _KAPPAS],
        ),
        section(
            "Tiers",
            "Number of methods that find a reference covered (all, some, one or none), over all references.",
            ["tier", ("references", "count")],
            tables["tiers"],
        ),
        section(
            "False negatives",
            "Covered by most annotators, but not by the method (no candidate covers it, or entailment rejected it).",
            ["method", ("missed", "fn"), ("no candidate", "fn_candidate"), ("no entailment", "fn_entailment")],
            misses if any(row["fn"] for row in misses) else (),
        ),
        section(
            "Cost per sample",
            "Costs include all starts.",
            ["metric", "model", *COSTS],
            [{"metric": metric, "model": model, **cost_cells(cost)} for (model, metric), cost in costs.items()],
        ),
        *published_sections(rows, means),
    )


_KAPPAS = {MODELS_KAPPA: "of models", MAJORITIES_KAPPA: "of the two majorities"}


def _labels(rows: Sequence[Row], labels: ItemLabels, covered: Sequence[str], subset: str | None) -> str:
    """Return the counts of the labels, and the subset."""
    kappa = next(row for row in rows if row["measure"] == KAPPA)
    taken = "" if subset is None else f"All figures cover only the subset {subset}. "
    if not covered:
        return f"{taken}{labels.items:,} items without labels, so there is no comparison with people."
    return (
        f"{taken}Labels that mean covered: {', '.join(f'`{markdown_cell(name)}`' for name in covered)}. "
        f"{labels.labelled:,} of {labels.items:,} items have a majority. {labels.ties:,} are ties and "
        f"{labels.items - labels.labelled - labels.ties:,} have no label, and both are excluded. Fleiss' kappa of the "
        f"annotators: {number(kappa['value'])}, Krippendorff's alpha {number(labels.alpha)}, over {kappa['n']:,} "
        "items with two labels or more."
    )


def _correlations(rows: Sequence[Row], level: str) -> str:
    """Return the correlations by metric and model, then by baseline; empty if the study does not have the level."""
    measures = intervals(COEFFICIENTS, beside=("p", _p_value))
    columns: Columns = ["metric", ("model", "baseline"), "n", ("left out", "excluded"), *measures]
    own = pivot((row for row in rows if row["level"] == level), COEFFICIENTS)
    return section(f"Correlation with human coverage, by {level}", "", columns, own)


def _p_value(row: Row) -> str:
    value = row["p_value"]
    return "<0.0001" if value is not None and value < 0.0001 else number(value, 4)


def _items(rows: Sequence[Row]) -> str:
    """Return precision, recall and F1 of covered items by metric, model and average."""
    split = [
        row | dict(zip(("measure", "average"), row["measure"].rsplit("_", 1), strict=True))
        for row in map(dict, rows)
        if row["measure"].endswith(tuple(f"_{average}" for average in (*AVERAGES, PAIRS)))
    ]
    note = (
        "Measures cover labelled items. Macro is the mean over the n samples with a defined measure. Micro is over "
        "items, and pairs is over pairs of an item and a response fact; n is the denominator."
    )
    columns: Columns = ["metric", "model", "average", *intervals(MEASURES, beside=("n", lambda row: number(row["n"])))]
    return section("Covered items", note, columns, pivot(split, MEASURES, ("metric", "model", "average")))


def published_sections(rows: Sequence[Row], means: Sequence[Row]) -> list[str]:
    """Return the published figures of the metrics of the study. By default, return the figures of ICAT."""
    ours: dict[tuple[str | None, str], list[str]] = defaultdict(list)
    for row in rows:
        if row["level"] != BY_QUERY:
            ours[row["metric"], row["measure"]].append(number(row["value"]))
    for row in means:
        ours[IMPORTANCE, row["measure"]].append(number(row["mean"]))

    def find(one: Row) -> str | None:
        found = ours.get((one["metric"], one["measure"]))
        if found is None and one["measure"] == F1_PAIRS:
            found = ours.get((one["metric"], "f1_micro"))
        return None if found is None else ", ".join(found)

    metrics = {row["metric"] for row in rows}
    return [
        published_section(heading, note, published_figures(paper), find)
        for metric, (heading, paper, note) in PUBLISHED_NOTES.items()
        if metric in metrics or (metric == "icat" and metrics.isdisjoint(PUBLISHED_NOTES))
    ]
