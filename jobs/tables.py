"""The schema of every table, in one place. Columns are only ever added, and are nullable.

The comments are the documentation of the columns: the site shows them (`docs/generate.py`), and docs/contract.md,
"Tables", explains values. Counts are of what their table's row is about, ids are texts, rates and scores lie between 0
and 1, and null means that a value does not exist or is unknown.
"""

from __future__ import annotations

import pyarrow as pa

from untold.udfs.llm.segments import ALTERNATIVE as ALTERNATIVE
from untold.udfs.llm.segments import COMPLETIONS as COMPLETIONS

CONTEXT = pa.struct([("id", pa.string()), ("text", pa.string()), ("kind", pa.string())])
# A distinct input row; further columns of the input follow these as they were read
SAMPLES = pa.schema(
    [
        ("sample_id", pa.string()),  # as given, else a hash of the row
        ("query", pa.string()),
        ("response", pa.string()),
        ("contexts", pa.list_(CONTEXT)),  # in the order given; an id that is missing is the number from 1, a kind null
        ("system", pa.string()),  # who answered; null where the input does not say
        ("label", pa.string()),  # what people say of the response; read by meta-evaluate alone
    ]
)
# An atom of nli, or an answer of qa: the nodes of a sample's fact graph, and what was filtered before it
ATOMS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("atom_id", pa.string()),
        ("text", pa.string()),  # of qa the answer alone
        ("question", pa.string()),  # null for nli
        ("origin", pa.string()),  # context, response or both
        ("sources", pa.list_(pa.string())),  # ids of the contexts that state it, in their order
        ("unit_type", pa.string()),  # of nli: Fact, Claim, ...; null where it is not certain
        ("rating", pa.float64()),  # 1 to 5: relevance (nli), confidence (qa)
        ("kept", pa.bool_()),  # false: filtered, and no node of the graph
        ("statement_id", pa.string()),  # null for atoms that are of no statement
    ]
)
# A judged pair of atoms: ordered for nli, unordered and once for qa
RELATIONS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("premise_id", pa.string()),  # an atom_id; for qa the first answer
        ("hypothesis_id", pa.string()),
        ("relation", pa.string()),  # null: it could not be had; implied: not asked, follows from others
        ("judged_by", pa.string()),  # model, list, classifier, filtered, implied, audit; null: quantities, settled
    ]
)
# An atomic statement of the contexts: a class of equivalent atoms, or for e2e an item of the judge's lists
STATEMENTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("statement_id", pa.string()),  # <sample_id>:<metric>:<n>, n from 1
        ("text", pa.string()),
        ("covered", pa.bool_()),  # whether the response conveys it
        ("in_basis", pa.bool_()),  # uncovered, and entailed by no other uncovered one; null for e2e
        ("sources", pa.list_(pa.string())),  # ids of the contexts that state it
        ("members", pa.list_(pa.string())),  # texts of all its atoms; null for e2e
        ("reference_id", pa.string()),  # of an aspect that was given, its id; null elsewhere
        ("claims", pa.list_(pa.string())),  # ids of the claims that cover it; null where there are no claims
        ("anchor", pa.string()),  # of a reference: the name or short phrase that it is about
        ("found_by", pa.string()),  # lexical or semantic: how a reference's covering claims were found
        ("relevance", pa.float64()),  # 1 to 5: to the query
        ("salience", pa.float64()),  # 1 to 5: among the query's facts
        ("weight", pa.float64()),  # of both, from 0 to 1, or as given
        ("rank", pa.int64()),  # from 1, by weight
        ("kept", pa.bool_()),  # whether an answer ought to state it; null where all count
        ("arecall", pa.bool_()),  # what each baseline says of a reference; null where it was not asked for
        ("erecall", pa.bool_()),
        ("holistic", pa.bool_()),
        ("relation", pa.string()),  # of rag: entailment, neutral or contradiction, of the response to it
        ("importance", pa.string()),  # of a nugget: vital or okay
        ("support", pa.string()),  # support, partial_support or not_support; null where it is unjudged
    ]
)
# Two statements of which members contradict each other, each pair once
CONFLICTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("first_id", pa.string()),  # a statement_id: of the statement that appears first
        ("second_id", pa.string()),
        ("first", pa.string()),  # its text
        ("second", pa.string()),
        ("first_sources", pa.list_(pa.string())),  # ids of the contexts that state it
        ("second_sources", pa.list_(pa.string())),
        ("coverage", pa.string()),  # which of them the response conveys: both, first, second or neither
    ]
)
# Columns that rows of a metric may lack, and then are null: they came after metrics of other packages were written
ADDED = {"statements": STATEMENTS.names[STATEMENTS.get_field_index("members") + 1 :], "relations": ["judged_by"]}
# A sample under a metric, whatever became of it
SCORES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("system", pa.string()),
        ("score", pa.float64()),  # null where undefined or unknown
        ("score_low", pa.float64()),  # what the unjudged part could make of it at worst, and at best
        ("score_high", pa.float64()),
        ("covered", pa.int64()),  # statements; null where the sample was not judged
        ("uncovered", pa.int64()),
        ("unjudged", pa.int64()),  # pairs without a relation, failed or beyond a cap
        ("dropped", pa.int64()),  # items of a judge's lists that name no source
        ("status", pa.string()),  # docs/contract.md, "Scores"
    ]
)
# A further measure of a sample under a metric, whatever became of it
MEASURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),  # null where undefined or unknown
        ("value_low", pa.float64()),
        ("value_high", pa.float64()),
    ]
)
# A claim of a response, equal ones once
CLAIMS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("claim_id", pa.string()),  # <sample_id>:<metric>:<position>
        ("position", pa.int64()),  # from 1
        ("text", pa.string()),
        ("anchor", pa.string()),  # null for icat
        ("verdict", pa.string()),  # supported, contradicted, not_supported; null where it could not be had
        ("evidence", pa.list_(pa.string())),  # ids of the chunks, of rag of the contexts, that ground it, by rank
    ]
)
# A judged pair of a claim and a chunk that was found for it
EVIDENCE = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("claim_id", pa.string()),
        ("chunk_id", pa.string()),
        ("rank", pa.int64()),  # from 1
        ("similarity", pa.float64()),  # as of `hits`; null on the web
        ("relation", pa.string()),  # null: it could not be had
        ("probability", pa.float64()),  # of entailment; null where no classifier judges
    ]
)
# A chunk that was found for a claim; its id names one text in the whole output
CHUNKS = pa.schema(
    [
        ("chunk_id", pa.string()),
        ("document_id", pa.string()),
        ("url", pa.string()),
        ("text", pa.string()),
    ]
)
# A pair of a reference and a generated fact that a stage of entailment was shown
CANDIDATES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("statement_id", pa.string()),
        ("claim_id", pa.string()),
        ("step", pa.string()),  # lexical or semantic: what it was found by
        ("rank", pa.int64()),  # from 1, within its step
        ("jaccard", pa.float64()),
        ("lcs", pa.float64()),
        ("cosine", pa.float64()),  # null for lexical ones
        ("chosen", pa.bool_()),  # null: its request failed
    ]
)
# A context of a sample under rag. Flags and counts that depend on a relation that could not be had are null
CONTEXTS_USED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("rank", pa.int64()),  # from 1, in the order of the contexts
        ("context_id", pa.string()),
        ("relevant", pa.bool_()),  # whether it entails a claim of the ground truth
        ("used", pa.bool_()),  # whether it entails a claim of the response
        ("noise", pa.bool_()),  # whether it entails a claim of the response that the ground truth does not entail
        ("new_claims", pa.int64()),  # claims of the ground truth that it entails, and no context before it
        ("response", pa.list_(pa.string())),  # its relation to each claim of the response; null: it could not be had
        ("ground_truth", pa.list_(pa.string())),  # its relation to each claim of the ground truth
    ]
)
# A request that a sample needed and did not get, or a row of the input that cannot be scored
FAILURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("stage", pa.string()),  # input for a row that cannot be scored
        ("request_id", pa.string()),  # null for such a row
        ("error_type", pa.string()),
        ("error", pa.string()),  # one line, never a prompt or an answer
    ]
)
# A stage of one start; requests = reused + answered + failed + unasked
USAGE = pa.schema(
    [
        ("stage", pa.string()),
        ("model", pa.string()),  # as the settings name it
        ("requests", pa.int64()),  # distinct ones
        ("reused", pa.int64()),  # had their answer in the store
        ("answered", pa.int64()),
        ("failed", pa.int64()),  # stored failures that were served again included
        ("unasked", pa.int64()),  # left when the run ended early
        ("calls", pa.int64()),  # HTTP requests, of which:
        ("retries", pa.int64()),  # neither a first attempt, nor rate limited, nor a turn of a tool
        ("rate_limited", pa.int64()),  # answered with 429
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("tokens_estimated", pa.bool_()),  # whether some answer came without a count
        ("cost", pa.float64()),  # in the currency of the prices set; null without a price
        ("seconds", pa.float64()),
        ("leaked_example", pa.int64()),  # items of answers dropped: they name what only the prompt's examples do
        ("parsed_schema", pa.int64()),  # requests whose completion is JSON of the schema that was sent
        ("parsed_template", pa.int64()),  # is in the form that the template asks for
        ("parsed_lenient", pa.int64()),  # is in another form that leaves no doubt
        ("unparsable", pa.int64()),  # of those that failed, what could not be read
        ("refused", pa.int64()),  # declined the task
        ("empty", pa.int64()),
        ("truncated", pa.int64()),
        ("retries_after_parse", pa.int64()),  # calls after a completion of no use
        ("endpoint", pa.string()),  # that was asked; null for local models and for what none of several answered
        ("reasoning_tokens", pa.int64()),  # of completion_tokens, as far as the endpoint reports them
        (
            "cut_prompts",
            pa.int64(),
        ),  # calls whose prompt the endpoint cut: too few tokens for its bytes
    ]
)
# A metric over all samples, or over those of one system; n = scored + undefined + failed
SUMMARY = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("n", pa.int64()),
        ("scored", pa.int64()),  # ok and partial
        ("undefined", pa.int64()),  # no_statements
        ("failed", pa.int64()),  # failed and budget
        ("mean", pa.float64()),  # of the scored; null without any
        ("ci_low", pa.float64()),  # 95 % BCa
        ("ci_high", pa.float64()),
        ("mean_low", pa.float64()),  # means of the bounds, over scored and failed
        ("mean_high", pa.float64()),
        ("answer_rate", pa.float64()),  # of samples with something to state, those with a score
        ("answer_ci_low", pa.float64()),  # 95 % Wilson
        ("answer_ci_high", pa.float64()),
        ("mean_zero", pa.float64()),  # mean where the others of these count as 0
    ]
)
# A measure over all samples of a metric, or over those of one system
MEASURES_SUMMARY = pa.schema(
    [
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("n", pa.int64()),
        ("defined", pa.int64()),  # samples with a value
        ("mean", pa.float64()),  # of these
        ("ci_low", pa.float64()),  # 95 % BCa
        ("ci_high", pa.float64()),
        ("mean_low", pa.float64()),  # means of the bounds, where there are any
        ("mean_high", pa.float64()),
        ("answer_rate", pa.float64()),  # of samples with something to state, those with a value
        ("answer_ci_low", pa.float64()),  # 95 % Wilson
        ("answer_ci_high", pa.float64()),
        (
            "mean_zero",
            pa.float64(),
        ),  # mean where the others of these count as 0; null where 0 is not the worst
    ]
)
# How often responses that give one side of a conflict give that of a source, of all samples or those of a system
SOURCE_PREFERENCE = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("by", pa.string()),  # what sources are told apart by: rank or kind
        ("source", pa.string()),  # the place among the contexts, from 1, or the kind
        ("n", pa.int64()),  # one-sided conflicts of which it states one side alone
        ("followed", pa.int64()),  # those whose covered side it states
        ("share", pa.float64()),  # followed / n
        ("ci_low", pa.float64()),  # 95 % BCa, over queries
        ("ci_high", pa.float64()),
        ("p_value", pa.float64()),  # of a share of one half, by a two-sided binomial test
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the rows of a metric and level
    ]
)
# ICAT of a system, or of all samples, under one beta
BETA_SWEEP = pa.schema(
    [
        ("system", pa.string()),  # null for all
        ("beta", pa.float64()),
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),  # samples whose ICAT is defined
    ]
)
# How far scorings of the same samples by one judge differ, of a metric's repeated samples or those of one system
REPEATABILITY = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("repeats", pa.int64()),  # scorings of each sample, the first included
        ("n", pa.int64()),  # samples that every scoring has a score for
        ("deviation", pa.float64()),  # standard deviation of a sample's score over its scorings
        ("statements", pa.int64()),  # that every scoring has, by their texts
        ("disagreement_rate", pa.float64()),  # share of these that scorings disagree about
        ("share", pa.float64()),  # of the variance of scores, and so of the interval's, that is the judge's own
    ]
)
# A form of a metric beside the published one, on the same samples: what it needs, and how far both agree
CALIBRATION = pa.schema(
    [
        ("form", pa.string()),
        ("settings", pa.list_(pa.string())),  # KEY=VALUE
        ("samples", pa.int64()),
        ("requests", pa.int64()),  # distinct, also those that another form has asked already
        ("calls", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("cost", pa.float64()),
        ("seconds", pa.float64()),  # that requests and local models took, one after the other
        ("population_size", pa.int64()),  # samples of the input, which these were drawn from
        ("projected_requests", pa.float64()),  # of all of these, in proportion
        ("projected_calls", pa.float64()),
        ("projected_prompt_tokens", pa.float64()),
        ("projected_completion_tokens", pa.float64()),
        ("projected_cost", pa.float64()),
        ("projected_seconds", pa.float64()),
        ("projected_hours", pa.float64()),  # at the limits, and of local models on the cores of this start
        ("verdicts", pa.int64()),  # of the published form: relations, or covered statements where there are none
        ("kappa", pa.float64()),
        ("kappa_low", pa.float64()),  # 95 %, over queries, as the other limits
        ("kappa_high", pa.float64()),
        ("n", pa.int64()),  # samples that both forms have a score for
        ("difference", pa.float64()),  # mean of the form's score less the published one's
        ("difference_low", pa.float64()),
        ("difference_high", pa.float64()),
        ("loa_low", pa.float64()),  # limits of agreement: where 95 % of the differences lie
        ("loa_high", pa.float64()),
        ("tau", pa.float64()),  # Kendall's tau-b of the systems' means
        ("tau_low", pa.float64()),
        ("tau_high", pa.float64()),
        ("same_winner", pa.bool_()),
        ("winner_changes", pa.float64()),  # share of resamples in which the best systems differ
        ("recommended", pa.bool_()),
        ("loa_low_ci_low", pa.float64()),  # 95 % of each limit of agreement
        ("loa_low_ci_high", pa.float64()),
        ("loa_high_ci_low", pa.float64()),
        ("loa_high_ci_high", pa.float64()),
        ("task_seconds", pa.float64()),  # of seconds, those of local models within Spark's tasks
        ("projected_task_seconds", pa.float64()),
        ("sample_requests", pa.float64()),  # of one sample, on average
        ("sample_calls", pa.float64()),
        ("sample_prompt_tokens", pa.float64()),
        ("sample_completion_tokens", pa.float64()),
        ("sample_cost", pa.float64()),
        ("sample_seconds", pa.float64()),
        ("sample_task_seconds", pa.float64()),
    ]
)
# A mean over all samples, from judgements of a part and a proxy on all, or how far two systems differ in it
ESTIMATES = pa.schema(
    [
        ("metric", pa.string()),  # labels for those of people
        ("proxy", pa.string()),  # the metric that stands for it on all samples
        ("level", pa.string()),  # overall, system or difference
        ("system", pa.string()),  # null for all
        ("compared_system", pa.string()),  # of a difference, the system that is subtracted from `system`
        ("n", pa.int64()),  # samples, but those that were drawn and have no score
        ("judged", pa.int64()),  # samples that the metric judged
        ("undefined", pa.int64()),  # drawn samples whose score is undefined
        ("failed", pa.int64()),  # drawn samples that failed
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("plain_mean", pa.float64()),  # of the judged samples alone
        ("plain_low", pa.float64()),
        ("plain_high", pa.float64()),
        ("weight", pa.float64()),  # of the proxy, 0 to 1
        ("effective_sample_size", pa.float64()),  # judged samples whose plain mean has an interval as narrow
        ("p_value", pa.float64()),  # of a difference
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the differences of a metric
    ]
)
# Recall of the first k facts of a ranking, or claim recall of the first k contexts: of a system's samples, or all
RECALL_CURVE = pa.schema(
    [
        ("system", pa.string()),  # null for all
        ("ranking", pa.string()),  # combined, relevance or salience; of rag contexts
        ("k", pa.int64()),
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),  # samples whose recall at k is defined
    ]
)
# A measure of agreement with people, under one convention for undefined scores
META_EVALUATION = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),  # null, as model, for the baselines
        ("model", pa.string()),
        ("convention", pa.string()),  # of undefined scores: mismatch, zero or published
        ("measure", pa.string()),  # lmr, kappa, ...
        ("value", pa.float64()),  # null where the measure is undefined
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),  # units compared; of a spread, models
        ("excluded", pa.int64()),  # comparisons that the convention leaves out
        ("published", pa.float64()),  # the paper's figure, where there is one
        ("level", pa.string()),  # what was compared in a study of coverage: sample, query or item
        ("p_value", pa.float64()),  # of a correlation, two-sided
    ]
)
# A labelled sample under a metric of a model, or under a baseline (docs/methods.md, section 6)
COVERAGE = pa.schema(
    [
        ("sample_id", pa.string()),
        ("query_id", pa.string()),  # the query itself, or the sample, where none was given
        ("metric", pa.string()),  # or the baseline, whose model is null
        ("model", pa.string()),
        ("human", pa.float64()),  # share of the labelled items that people found covered; null without any
        ("labelled", pa.int64()),  # items with a majority
        ("ties", pa.int64()),  # items whose annotators are split evenly: left out
        ("value", pa.float64()),  # share of its items that the metric found covered, or what the baseline is
        ("true_positives", pa.int64()),  # labelled items that both found covered; null where the metric judged none
        ("false_positives", pa.int64()),  # that the metric alone did
        ("false_negatives", pa.int64()),  # that people alone did
        ("true_negatives", pa.int64()),  # that neither did
        ("judged", pa.int64()),  # their sum
    ]
)
# How many references of a study of coverage so many methods call covered (docs/methods.md, section 6)
TIERS = pa.schema(
    [
        ("dataset", pa.string()),
        ("tier", pa.string()),  # full, partial, singleton:<method> or none
        ("count", pa.int64()),
    ]
)
# What a method does not call covered, and people do
FALSE_NEGATIVES = pa.schema(
    [
        ("method", pa.string()),  # <metric>:<model>, or a baseline
        ("fn", pa.int64()),
        ("fn_candidate", pa.int64()),  # nothing that covers it was shown to a stage; null without candidates
        ("fn_entailment", pa.int64()),  # the others
    ]
)
# A reference that a subset was drawn of
SUBSET = pa.schema(
    [
        ("sample_id", pa.string()),
        ("reference_id", pa.string()),
        ("tier", pa.string()),
    ]
)
# How many questions, or single units, earn so many points: intervals over several data sets are made of these
MATCH_COUNTS = pa.schema(
    [
        ("dataset", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("convention", pa.string()),
        ("measure", pa.string()),
        ("scale", pa.int64()),  # points of a unit that matches in full
        ("points", pa.int64()),  # whole, so that equal ones meet
        ("size", pa.int64()),  # units of a question that have points
        ("count", pa.int64()),  # how many questions are so
        ("excluded", pa.int64()),  # comparisons left out, of all of these together
    ]
)
# A paired permutation test of two metrics of one model, or of two prompts of one metric (docs/methods.md, section 7)
COMPARISONS = pa.schema(
    [
        ("dataset", pa.string()),
        ("model", pa.string()),
        ("first", pa.string()),  # a metric, or whose prompts
        ("second", pa.string()),
        ("difference", pa.float64()),  # of coverage accuracy over items, else mean LMR: of first less that of second
        ("p_value", pa.float64()),
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, of metrics and of prompts apart
        ("n", pa.int64()),  # units, or items, that both have judged
        ("convention", pa.string()),  # that points are under; null for coverage
        ("metric", pa.string()),  # of two prompts; null of two metrics
    ]
)
# A share that people found, with its 95 % interval (docs/methods.md, section 6)
HUMAN_STUDY = pa.schema(
    [
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),
    ]
)

# A chunk that a query found in an index
HITS = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int64()),  # from 1
        ("chunk_id", pa.string()),  # <document_id>#<n>, n from 0
        ("document_id", pa.string()),
        ("similarity", pa.float64()),  # a cosine, a score of BM25, or a sum of reciprocal ranks
        ("text", pa.string()),
    ]
)

RESULT_TABLES = {
    "samples": SAMPLES,
    "atoms": ATOMS,
    "relations": RELATIONS,
    "statements": STATEMENTS,
    "conflicts": CONFLICTS,
    "scores": SCORES,
    "measures": MEASURES,
    "claims": CLAIMS,
    "evidence": EVIDENCE,
    "chunks": CHUNKS,
    "candidates": CANDIDATES,
    "contexts_used": CONTEXTS_USED,
    "failures": FAILURES,
    "usage": USAGE,
    "summary": SUMMARY,
    "measures_summary": MEASURES_SUMMARY,
    "source_preference": SOURCE_PREFERENCE,
}
# What the rows of a table are sorted by, so that one result has one order of rows
ORDER = {
    "samples": ("sample_id",),
    "atoms": ("sample_id", "metric", "atom_id"),
    "relations": ("sample_id", "metric", "premise_id", "hypothesis_id"),
    "statements": ("sample_id", "metric", "statement_id"),
    "conflicts": ("sample_id", "metric", "first_id", "second_id"),
    "scores": ("sample_id", "metric"),
    "measures": ("sample_id", "metric", "measure"),
    "claims": ("sample_id", "metric", "position"),
    "evidence": ("sample_id", "metric", "claim_id", "rank"),
    "chunks": ("chunk_id",),
    "candidates": ("sample_id", "metric", "statement_id", "step", "rank"),
    "contexts_used": ("sample_id", "metric", "rank"),
    "failures": ("sample_id", "metric", "stage", "request_id"),
}
# Tables with many rows a sample: each file is sorted, and all rows of a sample are in one. To sort across files, Spark
# would compute the rows twice
SORTED_BY_FILE = frozenset({"relations", "conflicts"})
TABLES = {
    **RESULT_TABLES,
    "completions": COMPLETIONS,
    "meta_evaluation": META_EVALUATION,
    "coverage": COVERAGE,
    "tiers": TIERS,
    "false_negatives": FALSE_NEGATIVES,
    "subset": SUBSET,
    "match_counts": MATCH_COUNTS,
    "comparisons": COMPARISONS,
    "human_study": HUMAN_STUDY,
    "hits": HITS,
    "beta_sweep": BETA_SWEEP,
    "recall_curve": RECALL_CURVE,
    "repeatability": REPEATABILITY,
    "estimates": ESTIMATES,
    "calibration": CALIBRATION,
}
