"""NLI comprehensiveness (Dejl et al. 2025; docs/methods.md, sections 2 and 5) with atoms, relations and the fact graph.

`nodes` are numbers within a sample, and atoms with a context source come first. Samples with the same context atoms
share the relations between these. The set of context atoms is the *owner* of the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.metrics import base, graphs, judging, summaries
from untold.jobs.metrics.settings import NliSettings
from untold.jobs.retrieval.sources import STAGE as EMBED
from untold.jobs.retrieval.sources import assumed_results
from untold.jobs.settings.model import Settings
from untold.udfs.facts.nodes import gather_atoms
from untold.udfs.facts.pairs import leave_out

NAME = "nli"
# In their order
EXTRACT, REVISE, RATE = ("extract_atoms", "revise_atoms", "rate_relevance")


def stages(settings: Settings) -> tuple[str, ...]:
    """Return the stages in order."""
    return summaries.stages_with_contexts(settings, EXTRACT, REVISE, RATE, *judging.stages_of(settings.nli))


def assume(settings: Settings) -> base.Assumptions:
    """Assume the maximum number of atoms, all of them relevant, and all pairs in one wave.

    With `nli.skip_implied`, a filter by vectors or a classifier, a run may need fewer relations than the plan counts,
    so the number is an upper bound.
    """
    unit_type = F.lit(settings.nli.unit_types[0]).alias("unit_type")
    texts = summaries.different_texts(summaries.FEWEST_WORDS)
    atoms = F.transform(texts, lambda text: F.struct(text.alias("text"), unit_type))
    results = {
        **summaries.assumed_summaries(),
        EXTRACT: {"atoms": atoms},
        REVISE: {"atoms": F.transform("statements", lambda text: F.concat(text, F.lit(summaries.MARK)))},
        RATE: {"ratings": F.transform("statements", lambda _: F.lit(5.0)), "weighted": F.lit(True)},
        **_judged(),
    }
    at_once = settings.model_copy(update={NAME: settings.nli.model_copy(update={"skip_implied": False})})
    cascaded = settings.nli.classifies
    fewer = settings.nli.skip_implied or judging.pair_filter_of(settings.nli).needs_vectors or cascaded
    at_most = frozenset({judging.stage_of(settings.nli)}) if fewer else frozenset[str]()
    return base.Assumptions(at_once, results, at_most, partial(_expected, settings))


def _judged() -> dict[str, Mapping[str, Column]]:
    """Return the assumed output of judging, with a relation for each hypothesis of a list."""
    return {
        judging.CLASSIFY: {"relation": F.lit(None)},
        # No relation is certain, so the model judges all pairs
        judging.ENTAIL: {"relation": F.lit("neutral"), "certainty": F.lit(0.0)},
        judging.CLASSIFY_LISTS: {"relations": F.transform("targets", lambda _: F.lit("neutral"))},
        EMBED: assumed_results()[EMBED],
    }


def _expected(settings: Settings, figures: summaries.StageFigures) -> dict[str, Mapping[str, Column]]:
    """Return the average number of atoms of a text, and the average share of relevant atoms."""
    unit_type = F.lit(settings.nli.unit_types[0]).alias("unit_type")
    texts = summaries.expected_texts(figures[EXTRACT], "text")
    # A text with statements keeps at least one. Equal statements of several texts make a single node
    things = summaries.value_of(figures[REVISE].things, summaries.tokens_of("text", "statements"))
    nodes = things * figures[REVISE].distinct
    revised = F.greatest(summaries.whole(nodes, "text", "statements"), F.lit(1))
    passing = figures[RATE].passing(settings.thresholds.relevance)
    return {
        **summaries.expected_summaries(figures),
        EXTRACT: {"atoms": F.transform(texts, lambda text: F.struct(text.alias("text"), unit_type))},
        REVISE: {"atoms": summaries.rewritten("statements", revised)},
        RATE: {"ratings": summaries.expected_ratings("statements", passing), "weighted": F.lit(True)},
        **_judged(),
    }


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Return the tables `GRAPH_TABLES` of valid samples (columns of the table `samples`).

    Dejl et al. 2025; methods, section 2. A sample with a missing text has no further requests. A missing relation
    leaves a score with bounds.
    """
    calls = base.StageCalls(NAME, tools)
    contexts = calls.record(summaries.STAGE, tools.contexts())
    texts = graphs.passages(samples, summaries.gather_contexts(contexts))
    extracted = calls.ask(EXTRACT, texts, carry=("sample_id", "query", "position", "context_id", "text"))
    to_revise = calls.complete(_statements_to_revise(extracted, settings.nli.unit_types), EXTRACT)
    revised = calls.ask(REVISE, to_revise, carry=("sample_id", "query", "position"))
    to_rate = calls.complete(_statements_to_rate(revised), REVISE)
    rated = calls.ask(RATE, to_rate, carry=("sample_id", "position"))
    incomplete = calls.incomplete()
    atoms = tools.keep(_gather_atoms(calls.complete(extracted), revised, rated, settings), "atoms")
    owners = add_owners(atoms, settings.nli.max_pairs_per_sample)
    owners = tools.keep(add_query(owners, samples) if settings.llm.is_judge else owners, "owners")
    judged = judging.judge_pairs(owners, tools, settings.nli)
    relations = calls.record(
        judging.stage_of(settings.nli), tools.keep(_relations_of_samples(owners, judged), "relations")
    )
    nodes, edges = _graphs(atoms, owners, relations)
    condensed = tools.condense(nodes, edges)
    rated = atoms.select("sample_id", F.inline("atoms"))
    rated = rated.select("sample_id", "node", F.col("rating").alias("relevance"))
    relevances = rated if settings.nli.weighted else None
    found = graphs.PairJudgements(incomplete, owners, atoms, relations, condensed, relevances)
    tables = graphs.conclude_graphs(calls, samples, found)
    if not judging.is_audited(settings.nli):
        return tables
    corrections = judging.correct(relations, (nodes, edges), condensed, tools, settings.nli.audit_share)
    counts = judging.count_audited(judged, owners)
    audited = judging.audit_measures(NAME, tables["scores"], counts, corrections)
    return {**tables, "measures": tables["measures"].unionByName(audited)}


def _statements_to_revise(extracted: DataFrame, unit_types: Sequence[str]) -> DataFrame:
    """Return sample_id, query, position, text, statements: the units of the wanted types, if there are any.

    The text resolves references. The rating needs `query`.
    """
    wanted = F.filter("atoms", lambda atom: atom["unit_type"].isin(*unit_types))
    rows = extracted.select(
        "sample_id",
        "query",
        "position",
        "text",
        F.transform(wanted, lambda atom: atom["text"]).alias("statements"),
    )
    return rows.where(F.size("statements") > 0)


def _statements_to_rate(revised: DataFrame) -> DataFrame:
    """Return sample_id, position, query, statements: the atoms of contexts. Atoms of responses are not filtered."""
    rows = revised.where(F.col("position").isNotNull() & (F.size("atoms") > 0))
    return rows.select("sample_id", "position", "query", F.col("atoms").alias("statements"))


def _gather_atoms(extracted: DataFrame, revised: DataFrame, rated: DataFrame, settings: Settings) -> DataFrame:
    """Return the columns of `SAMPLE_ATOMS`, one row per sample of `extracted`.

    The joins are left joins. A passage without units of the wanted types is not revised, and a response is not rated.
    """
    # -1 is the response, because a null joins with nothing
    place = F.coalesce("position", F.lit(-1)).alias("place")
    joined = (
        extracted.select("sample_id", place, "position", "context_id", F.col("atoms").alias("units"))
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
    grouped = joined.groupBy("sample_id").agg(graphs.in_order("units", "statements", "ratings"))
    types, threshold = settings.nli.unit_types, settings.thresholds.relevance
    return base.map_rows(grouped, gather_atoms, metric=NAME, unit_types=types, threshold=threshold)


def add_owners(atoms: DataFrame, cap: int | None) -> DataFrame:
    """Return the number of pairs of each kind that a sample has and judges, and the owners of its pairs.

    The columns are sample_id, texts, contexts, responses, to_contexts, between_contexts, to_responses, left_out,
    contexts_owner, response_owner. Samples without a context atom have no row.

    atoms: rows of `SAMPLE_ATOMS`. `contexts` and `responses` are the numbers of nodes C and R. There are C·R pairs from
    the response, C·R pairs to it, and C·(C - 1) pairs between contexts (methods, section 2).

    cap: the maximum number of pairs. Pairs from the response to contexts come first, because every path that covers a
    statement begins with such a pair, and pairs between contexts are next. `left_out` is the number of further pairs.
    For example, 4 context atoms, 2 atoms of the response and a cap of 15 make 8 pairs to contexts, 7 of the 12 pairs
    between contexts, none of the 8 pairs to the response, and 13 further pairs.
    """
    # More pairs than any sample has, and small enough that no subtraction overflows a long
    room = F.lit(cap if cap is not None else 2**62).cast("long")
    crossing, between = F.col("contexts") * F.col("responses"), F.col("contexts") * (F.col("contexts") - 1)
    to_contexts = F.least(crossing, room)
    between_contexts = F.least(between, room - to_contexts)
    to_responses = F.least(crossing, room - to_contexts - between_contexts)
    judged = to_contexts + between_contexts + to_responses
    return atoms.where(F.col("contexts") > 0).select(
        *("sample_id", "texts", "contexts", "responses"),
        to_contexts.alias("to_contexts"),
        between_contexts.alias("between_contexts"),
        to_responses.alias("to_responses"),
        (2 * crossing + between - judged).alias("left_out"),
        # With the number of pairs, as a cap may leave samples of one set different parts of them
        F.concat_ws(":", F.lit("contexts"), "contexts_key", between_contexts).alias("contexts_owner"),
        F.concat_ws(":", F.lit("sample"), "sample_id").alias("response_owner"),
    )


def add_query(owners: DataFrame, samples: DataFrame) -> DataFrame:
    """Return the owners with the query before each statement of the response.

    The judge does not revise statements. A sentence may lack the subject, which the query names.
    """
    contexts = F.col("contexts").cast("int")
    responses = F.slice("texts", contexts + 1, F.greatest(F.size("texts") - contexts, F.lit(0)))
    stated = F.transform(responses, lambda text: F.concat_ws(" ", "query", text))
    texts = F.concat(F.slice("texts", F.lit(1), contexts), stated)
    queries = samples.select("sample_id", "query")
    return owners.join(queries, on="sample_id", how="inner").withColumn("texts", texts).drop("query")


def _relations_of_samples(owners: DataFrame, judged: DataFrame) -> DataFrame:
    """Return the columns of `JUDGED`, with sample_id instead of owner.

    All samples of an owner have its relations between contexts.
    """
    shared = owners.select("sample_id", F.col("contexts_owner").alias("owner"))
    own = owners.select("sample_id", F.col("response_owner").alias("owner"))
    return judged.join(shared.unionByName(own), on="owner", how="inner").select("sample_id", *judging.JUDGED[1:])


def _graphs(atoms: DataFrame, owners: DataFrame, relations: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the nodes and edges of the graphs of samples, for `Condenser.condense`.

    Edges are entailments. Failed pairs and pairs above the cap are unjudged edges, which only widen the bounds. Implied
    pairs need no edge, because other edges already form the path. `leave_out` represents the pairs above the cap by
    few edges through joints. A joint is a node without a context and without a response.
    """
    edges = relations.where((F.col("relation") == "entailment") | F.col("relation").isNull()).select(
        F.col("sample_id").alias("graph"), "source", "target", F.col("relation").isNotNull().alias("judged")
    )
    capped = owners.where(F.col("left_out") > 0).select(
        F.col("sample_id").alias("graph"), "contexts", "responses", "to_contexts", "between_contexts", "to_responses"
    )
    beyond = base.map_rows(capped, leave_out)
    nowhere = [F.lit(False).alias("context"), F.lit(False).alias("response"), F.lit(0).cast("long").alias("frequency")]
    joints = beyond.where(F.col("node").isNotNull()).select("graph", "node", *nowhere)
    unjudged = beyond.where(F.col("source").isNotNull()).select(
        "graph", "source", "target", F.lit(False).alias("judged")
    )
    return graphs.graph_nodes(atoms).unionByName(joints), edges.unionByName(unjudged)


def unknown_bounds(settings: Settings) -> base.Bounds:
    """Return the measures of conflicts, and the measures of an audit if the settings have one."""
    return {**graphs.MEASURES, **(judging.MEASURES if judging.is_audited(settings.nli) else {})}


METRIC = base.Metric(
    name=NAME,
    stages=stages,
    score=score,
    assume=assume,
    sections={NAME: NliSettings},
    tables=graphs.GRAPH_TABLES,
    settings=("summarise_contexts", NAME, "thresholds", "graph"),
    unknown=unknown_bounds,
    weighting=lambda settings: graphs.weighting(settings, settings.nli),
    pooled=partial(judging.pool_audits, metric=NAME),
)
