"""NLI comprehensiveness (Dejl et al. 2025; methods, sections 2 and 5): atoms, their relations, and the fact graph.

`nodes` are numbers within a sample: the atoms with a context source first. Relations between these are asked once for a
distinct set of context atoms, the *owner* of the pairs, and shared by all samples that have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from graph.waves import FIRST_CONTEXTS, OTHER_CONTEXTS, OTHER_RESPONSES, RESPONSE_ENDS, choose_by_wave
from jobs.metrics.base import (
    MetricResult,
    Tools,
    failure_rows,
    incomplete_samples,
    is_unasked,
    score_columns,
)
from jobs.metrics.contexts import STAGE as SUMMARISE
from jobs.metrics.contexts import gather_contexts, is_ready
from jobs.session import spark_schema
from jobs.settings import Settings
from udfs.atoms import METRIC as METRIC
from udfs.atoms import SAMPLE_ATOMS, gather_atoms
from udfs.pairs import LEFT_OUT, ask_all, leave_out

STAGES = ("extract_atoms", "revise_atoms", "rate_relevance", "classify_relation")
EDGES = "array<struct<source: bigint, target: bigint>>"


def stages(settings: Settings) -> tuple[str, ...]:
    """The stages that the metric asks, in order."""
    return (SUMMARISE, *STAGES) if settings.summarise_contexts else STAGES


def score(samples: DataFrame, contexts: DataFrame, tools: Tools, settings: Settings) -> MetricResult:
    """Scores valid samples (columns of the table `samples`) from their condensed contexts."""
    prepared = gather_contexts(contexts)
    extracted = tools.ask("extract_atoms", passages(samples, prepared))
    revised = tools.ask("revise_atoms", _statements_to_revise(extracted, settings.nli.unit_types))
    rated = tools.ask("rate_relevance", _statements_to_rate(revised))
    incomplete = incomplete_samples(extracted, revised, rated)
    atoms = tools.keep("atoms", _gather_atoms(extracted, revised, rated, incomplete, settings))
    owners = tools.keep("owners", add_owners(atoms, settings.nli.max_pairs_per_sample))
    judged = judge_pairs(owners, tools, skip_implied=settings.nli.skip_implied)
    relations = tools.keep("relations", _relations_of_samples(owners, judged))
    condensed = tools.condense(*_graphs(atoms, owners, relations))
    members = tools.keep("members", _members(atoms, condensed.classes))
    failures = [
        failure_rows(METRIC, stage, rows)
        for stage, rows in zip((SUMMARISE, *STAGES), (contexts, extracted, revised, rated, relations), strict=True)
    ]
    return MetricResult(
        statements=_statements(members),
        scores=_scores(samples, prepared, incomplete, owners, relations, condensed.counts),
        failures=reduce(DataFrame.unionByName, failures),
        atoms=_atom_rows(members),
        relations=_relation_rows(atoms, relations),
    )


def passages(samples: DataFrame, prepared: DataFrame) -> DataFrame:
    """Columns sample_id, query, position, context_id, passage, text: the texts that atoms are taken from.

    They are the condensed contexts and the response (position null) of each sample all of whose contexts are known. A
    blank text has no atoms and is not asked for.
    """
    ready = samples.select("sample_id", "query", "response").join(
        prepared.where(is_ready()), on="sample_id", how="inner"
    )
    answer = F.struct(
        F.lit(None).cast("int").alias("position"),
        F.lit(None).cast("string").alias("context_id"),
        F.col("response").alias("summary"),
    )
    texts = ready.select("sample_id", "query", F.explode(F.concat("kept", F.array(answer))).alias("text"))
    return texts.where(F.length(F.trim("text.summary")) > 0).select(
        "sample_id",
        "query",
        F.col("text.position").alias("position"),
        F.col("text.context_id").alias("context_id"),
        F.col("text.summary").alias("passage"),
        F.col("text.summary").alias("text"),
    )


def _statements_to_revise(extracted: DataFrame, unit_types: Sequence[str]) -> DataFrame:
    wanted = F.filter("atoms", lambda atom: atom["unit_type"].isin(*unit_types))
    rows = extracted.select(
        "sample_id",
        "query",
        "position",
        F.col("passage").alias("text"),
        F.transform(wanted, lambda atom: atom["text"]).alias("statements"),
    )
    return _complete(rows, extracted).where(F.size("statements") > 0)


def _statements_to_rate(revised: DataFrame) -> DataFrame:
    rows = revised.where(F.col("position").isNotNull() & (F.size("atoms") > 0))
    rows = rows.select("sample_id", "position", "query", F.col("atoms").alias("statements"))
    return _complete(rows, revised)


def _complete(rows: DataFrame, asked: DataFrame) -> DataFrame:
    """The rows of samples that a stage left nothing of unanswered; the others' would be paid for in vain."""
    incomplete = asked.where(F.col("error_type").isNotNull()).select("sample_id").distinct()
    return rows.join(incomplete, on="sample_id", how="left_anti")


def _gather_atoms(
    extracted: DataFrame, revised: DataFrame, rated: DataFrame, incomplete: DataFrame, settings: Settings
) -> DataFrame:
    """One row of `SAMPLE_ATOMS` a sample."""
    place = F.coalesce("position", F.lit(-1)).alias("place")
    joined = (
        extracted.select("sample_id", place, "position", "context_id", F.col("atoms").alias("units"))
        .join(incomplete.select("sample_id"), on="sample_id", how="left_anti")
        .join(
            revised.select("sample_id", place, F.col("atoms").alias("statements")),
            on=["sample_id", "place"],
            how="left",
        )
        .join(
            rated.select("sample_id", F.col("position").alias("place"), "ratings"),
            on=["sample_id", "place"],
            how="left",
        )
    )
    passage = F.struct(
        F.col("position").isNull().alias("is_response"), "position", "context_id", "units", "statements", "ratings"
    )
    grouped = joined.groupBy("sample_id").agg(F.array_sort(F.collect_list(passage)).alias("passages"))
    gather = partial(gather_atoms, unit_types=settings.nli.unit_types, threshold=settings.thresholds.relevance)
    return grouped.mapInArrow(gather, spark_schema(SAMPLE_ATOMS))


def add_owners(atoms: DataFrame, cap: int | None) -> DataFrame:
    """How many pairs of each kind a sample has and judges, and who owns those between its context atoms.

    Columns sample_id, texts, contexts, responses, to_contexts, between_contexts, to_responses, left_out,
    contexts_owner, response_owner. With `cap`, pairs from the response to contexts come first, then those between
    contexts, and `left_out` says how many there are beyond it.
    """
    counted = atoms.where(F.col("contexts") > 0).select(
        "sample_id",
        "texts",
        "contexts",
        "responses",
        "contexts_key",
        (F.col("contexts") * F.col("responses")).alias("crossing"),
        (F.col("contexts") * (F.col("contexts") - 1)).alias("between"),
    )
    room: Column = F.lit(cap if cap is not None else 2**62).cast("long")
    to_contexts = F.least("crossing", room)
    between = F.least("between", room - F.col("to_contexts"))
    to_responses = F.least("crossing", room - F.col("to_contexts") - F.col("between_contexts"))
    limited = (
        counted.withColumn("to_contexts", to_contexts)
        .withColumn("between_contexts", between)
        .withColumn("to_responses", to_responses)
    )
    judged = F.col("to_contexts") + F.col("between_contexts") + F.col("to_responses")
    return limited.select(
        "sample_id",
        "texts",
        "contexts",
        "responses",
        "to_contexts",
        "between_contexts",
        "to_responses",
        (2 * F.col("crossing") + F.col("between") - judged).alias("left_out"),
        F.concat_ws(":", F.lit("contexts"), "contexts_key", "between_contexts").alias("contexts_owner"),
        F.concat_ws(":", F.lit("sample"), "sample_id").alias("response_owner"),
    )


def _owners_of_contexts(owners: DataFrame, part: str) -> DataFrame:
    """One owner a distinct set of context atoms."""
    texts = F.slice("texts", F.lit(1), F.col("contexts").cast("int"))
    return (
        owners.groupBy("contexts_owner", "contexts", "between_contexts")
        .agg(F.any_value(texts).alias("texts"))
        .select(
            F.col("contexts_owner").alias("owner"),
            F.lit(part).alias("part"),
            "texts",
            "contexts",
            "between_contexts",
            *(F.lit(0).cast("long").alias(name) for name in ("to_contexts", "to_responses")),
            *(F.lit(None).cast(EDGES).alias(name) for name in ("first", "known")),
        )
    )


def _owners_of_responses(owners: DataFrame, part: str) -> DataFrame:
    """One owner a sample; `contexts_owner` leads to what is known of its context atoms."""
    return owners.where(F.col("to_contexts") > 0).select(
        F.col("response_owner").alias("owner"),
        F.lit(part).alias("part"),
        "texts",
        "contexts",
        F.lit(0).cast("long").alias("between_contexts"),
        "to_contexts",
        "to_responses",
        *(F.lit(None).cast(EDGES).alias(name) for name in ("first", "known")),
        "contexts_owner",
    )


def judge_pairs(owners: DataFrame, tools: Tools, *, skip_implied: bool) -> DataFrame:
    """Columns owner, source, target, request_id, relation, error_type, error: each pair to judge, once an owner."""
    stage = STAGES[-1]
    of_contexts = partial(_owners_of_contexts, owners)
    of_responses = partial(_owners_of_responses, owners)
    if not skip_implied:
        everything = of_contexts("all").unionByName(of_responses("all").drop("contexts_owner"))
        return tools.ask_pairs(stage, tools.keep("pairs", everything), ask_all)
    first = tools.ask_pairs(stage, tools.keep("pairs-1", of_contexts(FIRST_CONTEXTS)), choose_by_wave)
    rest = _with_edges(of_contexts(OTHER_CONTEXTS).withColumn("contexts_owner", F.col("owner")), first=first)
    ends = _with_edges(of_responses(RESPONSE_ENDS), first=first)
    second = tools.ask_pairs(
        stage, tools.keep("pairs-2", rest.unionByName(ends).drop("contexts_owner")), choose_by_wave
    )
    both = first.unionByName(second)
    others = _with_edges(of_responses(OTHER_RESPONSES), first=first, known=both)
    third = tools.ask_pairs(stage, tools.keep("pairs-3", others.drop("contexts_owner")), choose_by_wave)
    return both.unionByName(third)


def _with_edges(owners: DataFrame, first: DataFrame, known: DataFrame | None = None) -> DataFrame:
    """The owners with the entailments found so far: those of their context atoms, and in `known` their own too."""
    found = owners.drop("first").join(_edges_by(first, "contexts_owner", "first"), on="contexts_owner", how="left")
    if known is None:
        return found
    between = _edges_by(known, "contexts_owner", "between")
    own = _edges_by(known, "owner", "own")
    empty = F.array().cast(EDGES)
    together = F.concat(F.coalesce("between", empty), F.coalesce("own", empty))
    joined = found.join(between, on="contexts_owner", how="left").join(own, on="owner", how="left")
    return joined.withColumn("known", together).drop("between", "own")


def _edges_by(judged: DataFrame, owner: str, name: str) -> DataFrame:
    entailed = judged.where(F.col("relation") == "entailment")
    return entailed.groupBy(F.col("owner").alias(owner)).agg(
        F.array_sort(F.collect_list(F.struct("source", "target"))).alias(name)
    )


def _relations_of_samples(owners: DataFrame, judged: DataFrame) -> DataFrame:
    """Columns sample_id, source, target, request_id, relation, error_type, error."""
    shared = owners.select("sample_id", F.col("contexts_owner").alias("owner"))
    own = owners.select("sample_id", F.col("response_owner").alias("owner"))
    return judged.join(shared.unionByName(own), on="owner", how="inner").select(
        "sample_id", "source", "target", "request_id", "relation", "error_type", "error"
    )


def _graphs(atoms: DataFrame, owners: DataFrame, relations: DataFrame) -> tuple[DataFrame, DataFrame]:
    """The nodes and edges of the samples' graphs, for `Condenser.condense`."""
    nodes = (
        atoms.where(F.col("contexts") > 0)
        .select("sample_id", F.explode("atoms").alias("atom"))
        .where(F.col("atom.node").isNotNull())
        .select(
            F.col("sample_id").alias("graph"),
            *(F.col(f"atom.{name}").alias(name) for name in ("node", "context", "response", "frequency")),
        )
    )
    edges = relations.where((F.col("relation") == "entailment") | F.col("relation").isNull()).select(
        F.col("sample_id").alias("graph"), "source", "target", F.col("relation").isNotNull().alias("judged")
    )
    capped = owners.where(F.col("left_out") > 0).select(
        F.col("sample_id").alias("graph"), "contexts", "responses", "to_contexts", "between_contexts", "to_responses"
    )
    beyond = capped.mapInArrow(leave_out, spark_schema(LEFT_OUT))
    joints = (
        beyond.where(F.col("node").isNotNull())
        .select("graph", "node")
        .select(
            "graph",
            "node",
            F.lit(False).alias("context"),
            F.lit(False).alias("response"),
            F.lit(0).cast("long").alias("frequency"),
        )
    )
    unjudged = beyond.where(F.col("source").isNotNull()).select(
        "graph", "source", "target", F.lit(False).alias("judged")
    )
    return nodes.unionByName(joints), edges.unionByName(unjudged)


def _members(atoms: DataFrame, classes: DataFrame) -> DataFrame:
    """One row an atom: sample_id, the fields of `ATOM_TYPE`, and what its class is."""
    rows = atoms.select("sample_id", F.explode("atoms").alias("atom")).select("sample_id", "atom.*")
    found = classes.select(
        F.col("graph").alias("sample_id"), "node", "statement", "representative", "covered", "in_basis"
    )
    return rows.join(found, on=["sample_id", "node"], how="left")


def _statement_id() -> Column:
    return F.when(
        F.col("statement").isNotNull(),
        F.concat_ws(":", "sample_id", F.lit(METRIC), (F.col("statement") + 1).cast("string")),
    )


def _context_ids(sources: Column | str) -> Column:
    """The ids of sources, each once, in the order of the contexts."""
    return F.array_distinct(F.transform(F.array_sort(sources), lambda source: source["id"]))


def _atom_rows(members: DataFrame) -> DataFrame:
    """The table `atoms`."""
    return members.select(
        "sample_id",
        F.lit(METRIC).alias("metric"),
        "atom_id",
        "text",
        F.lit(None).cast("string").alias("question"),
        "origin",
        _context_ids("sources").alias("sources"),
        "unit_type",
        "rating",
        "kept",
        _statement_id().alias("statement_id"),
    )


def _statements(members: DataFrame) -> DataFrame:
    """The table `statements`: the classes of atoms that hold a context atom."""
    in_order = F.array_sort(F.collect_list(F.struct("node", "text")))
    return (
        members.where(F.col("statement").isNotNull())
        .groupBy("sample_id", "statement")
        .agg(
            F.max(F.when(F.col("representative"), F.col("text"))).alias("text"),
            F.max("covered").alias("covered"),
            F.max("in_basis").alias("in_basis"),
            F.flatten(F.collect_list("sources")).alias("sources"),
            in_order.alias("members"),
        )
        .select(
            "sample_id",
            F.lit(METRIC).alias("metric"),
            _statement_id().alias("statement_id"),
            "text",
            "covered",
            "in_basis",
            _context_ids("sources").alias("sources"),
            F.array_distinct(F.transform("members", lambda member: member["text"])).alias("members"),
        )
    )


def _relation_rows(atoms: DataFrame, relations: DataFrame) -> DataFrame:
    """The table `relations`."""
    ids = atoms.select("sample_id", F.transform("atoms", lambda atom: atom["atom_id"]).alias("ids"))
    return relations.join(ids, on="sample_id", how="inner").select(
        "sample_id",
        F.lit(METRIC).alias("metric"),
        F.get("ids", F.col("source").cast("int")).alias("premise_id"),
        F.get("ids", F.col("target").cast("int")).alias("hypothesis_id"),
        "relation",
    )


def _scores(
    samples: DataFrame,
    prepared: DataFrame,
    incomplete: DataFrame,
    owners: DataFrame,
    relations: DataFrame,
    counts: DataFrame,
) -> DataFrame:
    """The table `scores`."""
    judged = relations.groupBy("sample_id").agg(
        F.count_if(F.col("relation").isNull()).alias("failed"), F.max(is_unasked()).alias("unasked")
    )
    joined = (
        samples.select("sample_id", "system")
        .join(prepared.select("sample_id", "lost", "waiting"), on="sample_id", how="left")
        .join(
            incomplete.withColumnsRenamed({"lost": "lost_later", "waiting": "waiting_later"}),
            on="sample_id",
            how="left",
        )
        .join(owners.select("sample_id", "left_out"), on="sample_id", how="left")
        .join(judged, on="sample_id", how="left")
        .join(counts.withColumnRenamed("graph", "sample_id"), on="sample_id", how="left")
    )
    status = (
        F.when(F.col("lost") | F.col("lost_later"), "failed")
        .when(F.col("waiting") | F.col("waiting_later") | F.col("unasked"), "budget")
        .when(F.col("left_out").isNull(), "no_statements")
        .when(F.col("unjudged") > 0, "partial")
        .otherwise("ok")
    )
    unjudged = F.coalesce("left_out", F.lit(0)) + F.coalesce("failed", F.lit(0))
    with_status = joined.withColumn("unjudged", unjudged).withColumn("status", status)
    return with_status.select(*score_columns(METRIC))
