"""Compare verdicts on aspects and references with human labels; methods, section 6.

An item is an aspect or a reference of a sample. A method is a metric of a model, or a baseline (LongRecall).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from untold.jobs.metrics import METRICS
from untold.jobs.run.session import spark_schema, task_slots
from untold.jobs.run.terminal import amount
from untold.jobs.settings.model import Settings
from untold.jobs.study import coverage_rows
from untold.jobs.study.coverage_rows import KEY, Facts, Items, codes_of
from untold.jobs.study.judgements import (
    SHOWN,
    BoolArray,
    Judgements,
    Key,
    LabelledUnits,
    MetaEvaluationError,
    Owner,
    Row,
    Rows,
    Source,
    open_tables,
    read_judgements,
    read_means,
)
from untold.jobs.study.meta_evaluation import Study, StudyFindings, all_costs
from untold.jobs.study.report import IMPORTANCE, render_coverage
from untold.jobs.study_tables import SUBSET
from untold.udfs.errors import aside, near_misses, shorten
from untold.udfs.recall.concluding import ARECALL, BASELINES, ERECALL, was_shown
from untold.udfs.retrieval.embedding import find_model
from untold.udfs.retrieval.local_models import LocalModelFileError, ModelFiles
from untold.udfs.samples.items import items_of_json
from untold.udfs.samples.labelled import baseline_batches, baseline_names, baseline_schema
from untold.udfs.statistics.item_agreement import all_tiers, quotas_of, shortages, tier_of

# Columns of items: the first that the samples have, or the last for metrics of references
SOURCES = ("aspects", "references")
# The column with the kind of each reference
TYPES = "reference_types"
# Labels that mean covered by default, in lower case
COVERED = ("covered", "true", "yes", "1")
# The baselines of longrecall that send no request
UNASKED = (ARECALL, ERECALL)


def _read_verdicts(where: str, rows: pa.Table, items: Container[Key] = frozenset()) -> pa.Table:
    """Return owner, metric, sample_id, reference_id, covered and weight; the rows of a baseline have its owner.

    If labelled `items` have ids of statements, like the corrections of a report, returns only the verdicts on them.
    Otherwise drops statements without a reference_id.
    Raises MetaEvaluationError for verdicts of another type than boolean.
    """
    baselines = [name for name in BASELINES if name in rows.column_names]
    for name in ("covered", *baselines):
        kind = rows.schema.field(name).type
        if not pa.types.is_boolean(kind):
            raise MetaEvaluationError(f"{where}: the column `{name}` is {kind}. Give true, false, or null if unknown")
    if "statement_id" in rows.column_names:
        keys = zip(rows["sample_id"].to_pylist(), rows["statement_id"].to_pylist(), strict=True)
        own = pa.array([key in items for key in keys], pa.bool_())
        if pc.any(own).as_py():
            corrected = rows.filter(own)
            place = rows.column_names.index("reference_id")
            rows = corrected.set_column(place, "reference_id", corrected["statement_id"])
    rows = rows.filter(pc.field("reference_id").is_valid())
    weight = rows["weight"].cast(pa.float64()) if "weight" in rows.column_names else pa.nulls(len(rows), pa.float64())
    named = {name: rows[name].cast(pa.string()) for name in ("metric", *KEY)}
    verdicts = {**named, "owner": named["metric"], "weight": weight}
    parts = [pa.table(verdicts | {"covered": rows["covered"]})]
    for name in baselines:
        metric = pa.array([name] * len(rows), pa.string())
        part = pa.table(verdicts | {"metric": metric, "covered": rows[name]})
        parts.append(part.filter(pc.field("covered").is_valid()))
    return pa.concat_tables(parts)


STATEMENTS = Source(
    table="statements",
    required=("metric", *KEY, "covered"),
    optional=("weight", "statement_id", *BASELINES),
    read=_read_verdicts,
    unit=("item", "items"),
    value=("statement", "statements"),
    rows="statements with a reference_id",
    example="reference_id `{1}` of sample `{0}`",
    baselines=BASELINES,
)


@dataclass(frozen=True)
class CoverageStudy(Study):
    """A study of verdicts on labelled items."""

    @cached_property
    def units(self) -> Items:
        """The items of all samples."""
        request = self.request
        samples, items = read_items(request.input, self.samples, request.metrics)
        labels = check_labels(request.input, items, request.covered, unlabelled=request.subset is not None)
        return Items(samples, LabelledUnits(request.input, items, KEY), labels)

    def read(self) -> Judgements:
        """Return the verdicts of the models; equal verdicts of a baseline that sends no request only once."""
        request, units = self.request, self.units.units
        source = replace(STATEMENTS, read=partial(_read_verdicts, items=units.rows))
        return without_repeats(read_judgements(source, request.runs, units, request.metrics, request.judged))

    def evaluate(self, found: Judgements) -> StudyFindings:
        """Compare the verdicts of the models with the labels, and the methods with each other."""
        request, items = self.request, self.units
        options = request.resampling
        model, missing = _token_model(request.settings)
        names, tiers = list(methods_of(found).values()), tiers_of(found)
        counts = {tier: tiers.count(tier) for tier in all_tiers(names)}
        notes = [missing] if missing else []
        if unknown := tiers.count(None):
            words = "no tier, because a method has no result for"
            notes.append(amount(unknown, f"reference has {words} it", f"references have {words} them"))
        tables: dict[str, Sequence[Row]] = {}
        if request.subset is not None:
            quotas = quotas_of(request.subset, counts, names)
            for name, (have, want) in shortages(request.subset, quotas, counts).items():
                notes.append(f"{request.subset} is short: {have:,} references of {name}, {want:,} wanted")
            keys = items.units.keys
            drawn = draw_items(keys, tiers, quotas, options["seed"])
            chosen = sorted((*key, tier) for key, tier, one in zip(keys, tiers, drawn, strict=True) if one)
            tables["subset"] = [dict(zip(SUBSET.names, row, strict=True)) for row in chosen]
            items, found = items.only(drawn), found.only(drawn)
        labels = coverage_rows.count_labels(map(tuple, items.votes.tolist()))
        samples = coverage_rows.sample_rows(items, found, similarity_baselines(self.units, model, self.samples))
        more = coverage_rows.item_rows(items, found, **options)
        more += coverage_rows.pair_rows(items, found, read_facts(found, request.runs, "statements"), **options)
        queries = len({row["cluster"] for row in items.samples})
        if queries < len(items.samples) and not request.cluster:
            notes.append(
                f"{amount(len(items.samples), 'sample shares', 'samples share')} "
                f"{amount(queries, 'query', 'queries')}, and samples of one query are similar, so intervals over "
                "single samples are too narrow. --cluster resamples whole queries"
            )
        if compared := coverage_rows.compare_prompts(samples, request.prompt_pairs, **options):
            tables["comparisons"] = compared
        tables |= {
            "coverage": samples,
            "meta_evaluation": coverage_rows.evaluation_rows(samples, labels, more, **options),
            "tiers": [{"dataset": "coverage", "tier": tier, "count": count} for tier, count in counts.items()],
            "false_negatives": find_misses(found, items, read_facts(found, request.runs, "candidates")),
        }
        places = [request.runs[name] for name, metrics in found.metrics.items() if IMPORTANCE in metrics]
        means = read_means(places, IMPORTANCE)
        subset = None if request.subset is None else str(request.subset)
        report = render_coverage(
            tables,
            labels,
            items.covered,
            means,
            subset,
            all_costs(request),
            clustered=request.cluster,
            notes=notes,
        )
        sizes = {"items": labels.items, "labelled": labels.labelled, "ties": labels.ties}
        told = {"covered": list(items.covered), **sizes}
        return StudyFindings(tables, report, {"metrics": list(found.all_metrics), "labels": told, "subset": subset})


def read_items(path: str, samples: DataFrame, metrics: Sequence[str] | None) -> tuple[list[Row], pa.Table]:
    """Return the samples (sample_id, cluster, response), and the items of all samples in the order of the samples.

    Columns of the items: sample_id, reference_id, text, labels list<string>, covered_by list<string>, type. The cluster
    is the first of query_id, query and sample_id that the sample has. Metrics of references prefer references to
    aspects. Raises MetaEvaluationError for samples without a column of items, and for unreadable items.
    """
    of_references = metrics and all(name in METRICS and "references" in METRICS[name].reads for name in metrics)
    sources = SOURCES[::-1] if of_references else SOURCES
    source = next((name for name in sources if name in samples.columns), None)
    if source is None:
        near = aside(near_misses(SOURCES[0], samples.columns))
        raise MetaEvaluationError(
            f"{path} has no column `{SOURCES[0]}`{near} or `{SOURCES[1]}`. Add the items that a response should cover"
        )
    is_text = isinstance(samples.schema[source].dataType, T.StringType)
    names = [name for name in ("query_id", "query") if name in samples.columns]
    typed = TYPES in samples.columns and samples.schema[TYPES].dataType == T.ArrayType(T.StringType())
    given = samples.select(
        "sample_id",
        F.coalesce(*[F.col(name).cast("string") for name in names], F.col("sample_id")).alias("cluster"),
        "response",
        (F.col(source) if is_text else F.to_json(source)).alias("items"),
        *([TYPES] if typed else []),
    )
    rows, items, broken = given.toArrow().sort_by("sample_id").to_pylist(), [], []
    for row in rows:
        types = row.pop(TYPES, None) or ()
        try:
            read = items_of_json(row.pop("items"))
        except ValueError as error:
            broken.append(f"`{shorten(row['sample_id'])}` ({error})")
            continue
        for place, one in enumerate(read):
            kind = types[place] if place < len(types) else None
            named = {"sample_id": row["sample_id"], "reference_id": one["id"], "text": one["text"]}
            items.append(named | {"labels": one["labels"] or (), "covered_by": one["covered_by"], "type": kind})
    if broken:
        have = amount(len(broken), "sample has", "samples have")
        raise MetaEvaluationError(f"{path}: {have} items that cannot be read ({', '.join(broken[:SHOWN])})")
    return rows, pa.Table.from_pylist(items, _ITEMS)


_TEXT, _TEXTS = pa.string(), pa.list_(pa.string())
_ITEMS = pa.schema(
    [
        *((name, _TEXT) for name in (*KEY, "text")),
        *((name, _TEXTS) for name in ("labels", "covered_by")),
        ("type", _TEXT),
    ]
)


def check_labels(path: str, items: pa.Table, covered: Sequence[str] | None, *, unlabelled: bool) -> tuple[str, ...]:
    """Return the labels that mean covered. By default, these are the labels of the input that `COVERED` lists.

    Raises MetaEvaluationError for a given label that no item has, and for items without labels, unless they may be
    `unlabelled` or have types.
    """
    counts = Counter(label for labels in items["labels"].to_pylist() for label in labels if label is not None)
    known = sorted(counts, key=lambda label: (-counts[label], label))
    shown = f"{', '.join(f'`{shorten(name)}`' for name in known[:SHOWN])}{', ...' if len(known) > SHOWN else ''}"
    if not known and not covered and (unlabelled or items["type"].null_count < len(items)):
        return ()
    if not known:
        raise MetaEvaluationError(f"{path}: no item has a label. Give each {{id, text, labels}}, a label per annotator")
    if covered is None:
        labels = tuple(name for name in known if name.strip().lower() in COVERED)
        if not labels:
            raise MetaEvaluationError(
                f"{path}: no label is one of {', '.join(COVERED)}. Set the labels that mean covered with --covered. "
                f"Labels are {shown}"
            )
        return labels
    unknown = [f"`{shorten(name)}`{aside(near_misses(name, known))}" for name in covered if name not in counts]
    if unknown:
        raise MetaEvaluationError(f"{path}: no item is labelled {', '.join(unknown)}. Labels are {shown}")
    return tuple(covered)


def without_repeats(found: Judgements) -> Judgements:
    """Keep the first model's verdicts of an `UNASKED` baseline if all models that have it have equal verdicts."""
    metrics = dict(found.metrics)
    for name in UNASKED:
        models = [model for model, names in metrics.items() if name in names]
        verdicts = [found.tables[model, name]["covered"] for model in models]
        if verdicts and all(one.equals(verdicts[0]) for one in verdicts):
            for model in models[1:]:
                metrics[model] = tuple(one for one in metrics[model] if one != name)
    return replace(found, metrics=metrics)


def methods_of(found: Judgements) -> dict[Owner, str]:
    """Return the names of the methods: `<metric>:<model>`, or only the baseline if it is `UNASKED` and of one model."""
    counts = Counter(metric for _, metric in found.owners)
    return {
        (model, metric): metric if metric in UNASKED and counts[metric] == 1 else f"{metric}:{model}"
        for model, metric in found.owners
    }


def tiers_of(found: Judgements) -> list[str | None]:
    """Return the tier of each item, None if a method has no verdict on it."""
    names = methods_of(found).values()
    said = np.stack([codes_of(found.tables[owner]) for owner in found.owners], axis=1)
    return [
        None if min(verdicts) < 0 else tier_of(dict(zip(names, map(bool, verdicts), strict=True)))
        for verdicts in said.tolist()
    ]


def draw_items(keys: Sequence[Key], tiers: Sequence[str | None], quotas: Mapping[str, int], seed: int) -> BoolArray:
    """Draw the items of each tier with the lowest hashes of seed, sample_id and reference_id: bool[items]."""
    by_tier: dict[str | None, list[tuple[str, Key, int]]] = defaultdict(list)
    for item, (key, tier) in enumerate(zip(keys, tiers, strict=True)):
        by_tier[tier].append((sha256(":".join((str(seed), *key)).encode()).hexdigest(), key, item))
    drawn = np.zeros(len(keys), dtype=bool)
    drawn[[item for tier, quota in quotas.items() for _, _, item in sorted(by_tier[tier])[:quota]]] = True
    return drawn


def find_misses(found: Judgements, items: Items, shown: Mapping[Owner, Facts]) -> Rows:
    """Return the rows of the table `false_negatives`: method, fn, fn_candidate, fn_entailment.

    fn counts the items that people call covered, and the method does not. fn_candidate counts the items of fn without a
    candidate that covers the item; without covered_by, any candidate covers it. fn_entailment counts the other items.
    Both are null for methods without candidates. `shown` are the candidates of each method.
    """
    rows = []
    keys, covering = items.units.keys, items.units.column("covered_by")
    for owner, name in methods_of(found).items():
        missed = np.flatnonzero((items.said == 1) & (codes_of(found.tables[owner]) == 0)).tolist()
        facts = shown.get(owner)
        seen = None
        if facts is not None:
            seen = sum(was_shown(set().union(*facts.get(keys[item], ())), covering[item]) for item in missed)
        parts = {"fn_candidate": None if seen is None else len(missed) - seen, "fn_entailment": seen}
        rows.append({"method": name, "fn": len(missed), **parts})
    return rows


def read_facts(found: Judgements, places: Mapping[str, str], table: str) -> dict[Owner, Facts]:
    """Return the response facts of each item by method: its candidates, or those that cover it (table `statements`).

    `places` has the output of each model. Leaves out methods whose outputs do not have these facts.
    """
    facts: dict[Owner, Facts] = {}
    for model, metric in found.owners:
        if metric not in METRICS or table not in METRICS[metric].tables:
            continue
        database = open_tables(places[model], ["claims", *{"statements", table}])
        if database is None or not database.execute(_REFERENCES, [metric]).fetchall():
            continue
        own: dict[Key, list[frozenset[str]]] = defaultdict(list)
        for sample, item, text, anchor in database.execute(_FACTS[table], [metric]).fetchall():
            own[sample, item].append(frozenset((text, text if anchor is None else f"{anchor}: {text}")))
        if own or table == "candidates":
            facts[model, metric] = own
    return facts


_REFERENCES = "from statements where metric = ? and reference_id is not null limit 1"
_FACTS = {
    "statements": """select sample_id, reference_id, text, anchor
        from (select sample_id, metric, reference_id, unnest(claims) as claim_id from statements)
        join (select sample_id, metric, claim_id, text, anchor from claims) using (sample_id, metric, claim_id)
        where metric = ? and reference_id is not null""",
    "candidates": """select sample_id, statements.reference_id, claims.text, claims.anchor
        from candidates join statements using (sample_id, metric, statement_id)
        join claims using (sample_id, metric, claim_id)
        where metric = ? and statements.reference_id is not null""",
}


def similarity_baselines(items: Items, model: ModelFiles | None, samples: DataFrame) -> Rows:
    """Return sample_id and one value per baseline: the response against the texts of all items, joined by newlines.

    null for samples without a response. Only a local model has the token states that BERTScore needs.
    """
    texts: dict[str, list[str]] = defaultdict(list)
    for (sample, _), text in zip(items.units.keys, items.units.column("text"), strict=True):
        texts[sample].append(text)
    responses = {row["sample_id"]: row["response"] for row in items.samples}
    rows = [
        {"sample_id": name, "response": responses[name], "reference": "\n".join(own)} for name, own in texts.items()
    ]
    spark = samples.sparkSession
    schema = pa.schema([(name, pa.string()) for name in ("sample_id", "response", "reference")])
    # A baseline takes tens of milliseconds per sample, and so runs on all cores
    spread = spark.createDataFrame(pa.Table.from_pylist(rows, schema)).repartition(task_slots(spark), "sample_id")
    fields = spark_schema(baseline_schema(baseline_names(model)))
    found: Rows = spread.mapInArrow(partial(baseline_batches, model=model), fields).toArrow().to_pylist()
    return found


def _token_model(settings: Settings) -> tuple[ModelFiles | None, str | None]:
    """Return the model of BERTScore, or None with the reason."""
    if settings.embeddings.base_url is not None:
        return None, "BERTScore is skipped, because embeddings.base_url returns vectors of texts, not of tokens"
    try:
        return find_model(settings.embeddings.model), None
    except LocalModelFileError as error:
        return None, f"BERTScore is skipped: {error}"
