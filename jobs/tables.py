"""Define the schema of every table. Columns are only added, and all columns are nullable.

The comments are the documentation of the columns. The site shows them (`docs/generate.py`), and docs/contract.md,
"Tables", explains the values. Ids are texts. Rates and scores lie between 0 and 1. Null means that a value does not
exist or is unknown.
"""

from __future__ import annotations

import pyarrow as pa

from untold.jobs.study_tables import STUDY_TABLES
from untold.udfs.llm.store_files import ALTERNATIVE as ALTERNATIVE
from untold.udfs.llm.store_files import COMPLETIONS as COMPLETIONS

CONTEXT = pa.struct([("id", pa.string()), ("text", pa.string()), ("kind", pa.string())])
# A distinct input row; further columns of the input follow these as they were read
SAMPLES = pa.schema(
    [
        ("sample_id", pa.string()),  # from the input, or a hash of the row
        ("query", pa.string()),
        ("response", pa.string()),
        ("contexts", pa.list_(CONTEXT)),  # a missing id is the number from 1, a missing kind null
        ("system", pa.string()),  # the system that wrote the response; null if unknown
        ("label", pa.string()),  # the human label of the response; only meta-evaluate reads it
    ]
)
# An atom of nli or an answer of qa: a node of a sample's fact graph, or a filtered one
ATOMS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("atom_id", pa.string()),
        ("text", pa.string()),  # for qa the answer without its question
        ("question", pa.string()),  # null for nli
        ("origin", pa.string()),  # context, response or both
        ("sources", pa.list_(pa.string())),  # ids of the contexts that state it, in the order of the contexts
        ("unit_type", pa.string()),  # for nli: Fact, Claim, ...; null if ambiguous
        ("rating", pa.float64()),  # 1 to 5: relevance (nli), confidence (qa)
        ("kept", pa.bool_()),  # false for a filtered atom, which is not a node of the graph
        ("statement_id", pa.string()),  # null for atoms without a statement
    ]
)
# A judged pair of atoms: ordered for nli, unordered for qa
RELATIONS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("premise_id", pa.string()),  # an atom_id; for qa the first answer
        ("hypothesis_id", pa.string()),
        ("relation", pa.string()),  # null for a failed request; implied: it follows from other relations
        ("judged_by", pa.string()),  # model, list, classifier, filtered, implied or audit; null for rules
    ]
)
# An atomic statement of the contexts: a class of equivalent atoms, or for e2e an item of the judge's lists
STATEMENTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("statement_id", pa.string()),  # <sample_id>:<metric>:<n>, n from 1
        ("text", pa.string()),
        ("covered", pa.bool_()),  # true if the response states it
        ("in_basis", pa.bool_()),  # true if uncovered and not entailed by another uncovered statement; null for e2e
        ("sources", pa.list_(pa.string())),  # ids of the contexts that state it
        ("members", pa.list_(pa.string())),  # texts of all its atoms; null for e2e
        ("reference_id", pa.string()),  # the id of a given aspect; null for other statements
        ("claims", pa.list_(pa.string())),  # ids of the claims that cover it; null for metrics without claims
        ("anchor", pa.string()),  # the name or short phrase that a reference is about
        ("found_by", pa.string()),  # lexical or semantic: the search that found the covering claims of a reference
        ("relevance", pa.float64()),  # 1 to 5, to the query
        ("salience", pa.float64()),  # 1 to 5, among the facts of the query
        ("weight", pa.float64()),  # 0 to 1, from relevance and salience, or given
        ("rank", pa.int64()),  # from 1, by weight
        ("kept", pa.bool_()),  # true if it counts for recall; null if all statements count
        ("arecall", pa.bool_()),  # the verdict of each baseline on a reference; null if not requested
        ("erecall", pa.bool_()),
        ("holistic", pa.bool_()),
        ("relation", pa.string()),  # rag: response to it, entailment and others; answer_relevancy: of it to the query
        ("importance", pa.string()),  # for a nugget: vital or okay
        ("support", pa.string()),  # support, partial_support or not_support; null if unjudged
        ("reason", pa.string()),  # the judge's reason for the verdict; null if the completion has none
        ("source_weight", pa.float64()),  # the largest weight of its sources; null without sources.weights
    ]
)
# A pair of statements with contradicting members
CONFLICTS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("first_id", pa.string()),  # the statement_id of the statement that appears first
        ("second_id", pa.string()),
        ("first", pa.string()),  # its text
        ("second", pa.string()),
        ("first_sources", pa.list_(pa.string())),  # ids of the contexts that state it
        ("second_sources", pa.list_(pa.string())),
        ("coverage", pa.string()),  # the sides that the response states: both, first, second or neither
    ]
)
# Columns that rows of a metric can lack. They are newer than the first metrics of other packages, and become null.
ADDED = {"statements": STATEMENTS.names[STATEMENTS.get_field_index("members") + 1 :], "relations": ["judged_by"]}
# A sample and a metric, including failed samples
SCORES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("system", pa.string()),
        ("score", pa.float64()),  # null if undefined or unknown
        ("score_low", pa.float64()),  # the smallest and the largest score for any result of the unjudged part
        ("score_high", pa.float64()),
        ("covered", pa.int64()),  # statements; null for an unjudged sample
        ("uncovered", pa.int64()),
        ("unjudged", pa.int64()),  # pairs without a relation, because of a failure or a limit
        ("dropped", pa.int64()),  # items of a judge's lists without a source
        ("status", pa.string()),  # docs/contract.md, "Scores"
    ]
)
# A measure of a sample and a metric, including failed samples
MEASURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("value", pa.float64()),  # null if undefined or unknown
        ("value_low", pa.float64()),
        ("value_high", pa.float64()),
    ]
)
# A distinct claim of a response
CLAIMS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("claim_id", pa.string()),  # <sample_id>:<metric>:<position>
        ("position", pa.int64()),  # from 1
        ("text", pa.string()),
        ("anchor", pa.string()),  # null for icat
        ("verdict", pa.string()),  # supported, contradicted or not_supported; null for a failed request
        ("evidence", pa.list_(pa.string())),  # ids of the chunks, or for rag of the contexts, that support it, by rank
    ]
)
# A judged pair of a claim and a retrieved chunk
EVIDENCE = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("claim_id", pa.string()),
        ("chunk_id", pa.string()),
        ("rank", pa.int64()),  # from 1
        ("similarity", pa.float64()),  # as in `hits`; null for the web
        ("relation", pa.string()),  # null for a failed request
        ("probability", pa.float64()),  # of entailment; null without a classifier
    ]
)
# A chunk that was retrieved for a claim. Its id is unique in the output.
CHUNKS = pa.schema(
    [
        ("chunk_id", pa.string()),
        ("document_id", pa.string()),
        ("url", pa.string()),
        ("text", pa.string()),
    ]
)
# A judged pair of a reference and a generated fact
CANDIDATES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("statement_id", pa.string()),
        ("claim_id", pa.string()),
        ("step", pa.string()),  # lexical or semantic: the search that found the pair
        ("rank", pa.int64()),  # from 1, within its step
        ("jaccard", pa.float64()),
        ("lcs", pa.float64()),
        ("cosine", pa.float64()),  # null for lexical pairs
        ("chosen", pa.bool_()),  # null for a failed request
    ]
)
# A context of a sample under rag. Flags and counts are null if they depend on a failed request.
CONTEXTS_USED = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("rank", pa.int64()),  # from 1, in the order of the contexts
        ("context_id", pa.string()),
        ("relevant", pa.bool_()),  # true if it entails a claim of the ground truth
        ("used", pa.bool_()),  # true if it entails a claim of the response
        ("noise", pa.bool_()),  # true if it entails a wrong claim of the response
        ("new_claims", pa.int64()),  # claims of the ground truth that it entails and no earlier context entails
        ("response", pa.list_(pa.string())),  # its relation to each claim of the response; null for a failed request
        ("ground_truth", pa.list_(pa.string())),  # its relation to each claim of the ground truth
    ]
)
# A criterion of the rubric of a sample. Verdicts and earned points are null for failed requests.
CRITERIA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("number", pa.int64()),  # from 1, in the order of the rubric
        ("criterion_id", pa.string()),  # given, or the number
        ("text", pa.string()),
        ("points", pa.float64()),  # below 0 for content that a response should avoid
        ("dimension", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("verdict", pa.string()),  # met, partly_met, not_met, or graded for a criterion with levels
        ("grade", pa.string()),  # the label of the level
        ("earned", pa.float64()),  # points times the credit of the verdict
        ("reason", pa.string()),  # the reason that the judge gives
        ("reference_verdict", pa.string()),  # the verdict on the ground truth, if rubric.score is relative
        ("reference_grade", pa.string()),
        ("reference_earned", pa.float64()),
        ("reference_reason", pa.string()),
    ]
)
# A citation of a sentence, or a sentence with all its sources. Support is null for failed requests
CITATIONS = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("sentence_number", pa.int64()),  # from 1, in the order of the response
        ("sentence", pa.string()),  # without its markers
        ("citation", pa.int64()),  # from 1, in the order of the sentence; 0 for all its sources together
        ("source", pa.string()),  # an id or URL; null for all sources together
        ("support", pa.string()),  # full, partial or none
        ("status", pa.string()),  # judged, uncited, no_source, failed or unasked
        ("reason", pa.string()),  # the reason that the judge gives, or the reason for no_source
    ]
)
# A failed request of a sample, or an invalid row of the input
FAILURES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("stage", pa.string()),  # `input` for an invalid row
        ("request_id", pa.string()),  # null for an invalid row
        ("error_type", pa.string()),
        ("error", pa.string()),  # one line without prompts and completions
    ]
)
# A stage of one start; requests = reused + answered + failed + unasked
USAGE = pa.schema(
    [
        ("stage", pa.string()),
        ("model", pa.string()),  # from the settings
        ("requests", pa.int64()),  # distinct requests
        ("reused", pa.int64()),  # with a completion in the store
        ("answered", pa.int64()),
        ("failed", pa.int64()),  # including stored failures
        ("unasked", pa.int64()),  # not sent because the run ended early
        ("calls", pa.int64()),  # HTTP requests
        ("retries", pa.int64()),  # calls that repeat a failed one, without rate limits and turns of tools
        ("rate_limited", pa.int64()),  # calls with the status 429
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("tokens_estimated", pa.bool_()),  # true if a response has no token count
        ("cost", pa.float64()),  # in the currency of the prices; null without a price
        ("seconds", pa.float64()),
        ("leaked_example", pa.int64()),  # dropped items that repeat an example of the prompt
        ("parsed_schema", pa.int64()),  # completions that are JSON of the sent schema
        ("parsed_template", pa.int64()),  # completions in the form of the template
        ("parsed_lenient", pa.int64()),  # completions in another unambiguous form
        ("unparsable", pa.int64()),  # failed requests whose completion cannot be parsed
        ("refused", pa.int64()),  # failed requests whose completion declines the task
        ("empty", pa.int64()),
        ("truncated", pa.int64()),
        ("retries_after_parse", pa.int64()),  # calls that repeat an unusable completion
        ("endpoint", pa.string()),  # the endpoint; null for local models and for requests without a response
        ("reasoning_tokens", pa.int64()),  # the part of completion_tokens that the endpoint reports as reasoning
        ("cut_prompts", pa.int64()),  # calls with a cut prompt: too few tokens for its bytes
    ]
)
# A metric over all samples or the samples of one system; n = scored + undefined + failed
SUMMARY = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("n", pa.int64()),
        ("scored", pa.int64()),  # ok and partial
        ("undefined", pa.int64()),  # no_statements
        ("failed", pa.int64()),  # failed and budget
        ("mean", pa.float64()),  # over scored samples; null without any
        ("ci_low", pa.float64()),  # 95 % BCa
        ("ci_high", pa.float64()),
        ("mean_low", pa.float64()),  # means of the bounds over scored and failed samples
        ("mean_high", pa.float64()),
        ("answer_rate", pa.float64()),  # share of the samples with statements that have a score
        ("answer_ci_low", pa.float64()),  # 95 % Wilson
        ("answer_ci_high", pa.float64()),
        ("mean_zero", pa.float64()),  # the mean if the other samples with statements count as 0
        ("alpha", pa.float64()),  # Krippendorff's alpha of the votes of a panel; null without a panel
        ("order_difference", pa.float64()),  # mean with the contexts in the given order minus that in other orders
        ("order_ci_low", pa.float64()),  # 95 % BCa; null without repeats.shuffle_contexts
        ("order_ci_high", pa.float64()),
    ]
)
# A measure over all samples of a metric or the samples of one system
MEASURES_SUMMARY = pa.schema(
    [
        ("metric", pa.string()),
        ("measure", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("n", pa.int64()),
        ("defined", pa.int64()),  # samples with a value
        ("mean", pa.float64()),  # over these samples
        ("ci_low", pa.float64()),  # 95 % BCa
        ("ci_high", pa.float64()),
        ("mean_low", pa.float64()),  # means of the bounds
        ("mean_high", pa.float64()),
        ("answer_rate", pa.float64()),  # share of the samples with statements that have a value
        ("answer_ci_low", pa.float64()),  # 95 % Wilson
        ("answer_ci_high", pa.float64()),
        ("mean_zero", pa.float64()),  # like `summary`; null if 0 is not the worst
    ]
)
# The share of one-sided conflicts in which responses state a source's side, over all samples or one system
SOURCE_PREFERENCE = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("by", pa.string()),  # rank or kind: the property of sources
        ("source", pa.string()),  # the rank of the context, from 1, or its kind
        ("n", pa.int64()),  # one-sided conflicts with the source on only one side
        ("followed", pa.int64()),  # conflicts whose covered side the source states
        ("share", pa.float64()),  # followed / n
        ("ci_low", pa.float64()),  # 95 % BCa, over queries
        ("ci_high", pa.float64()),
        ("p_value", pa.float64()),  # of a two-sided binomial test for a share of one half
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the rows of a metric and level
    ]
)
# ICAT of a system or of all samples for one beta
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
# Repeatability of a judge on the repeated samples of a metric, over all samples or one system
REPEATABILITY = pa.schema(
    [
        ("metric", pa.string()),
        ("level", pa.string()),  # overall or system
        ("system", pa.string()),  # null for overall
        ("repeats", pa.int64()),  # scorings of each sample, including the first
        ("n", pa.int64()),  # samples with a score in every scoring
        ("deviation", pa.float64()),  # standard deviation of a sample's repeated scores
        ("statements", pa.int64()),  # statements in every scoring, compared by text
        ("disagreement_rate", pa.float64()),  # share of these statements with different verdicts
        ("share", pa.float64()),  # the judge's share of the variance of scores
    ]
)
# The vote of a judge of a panel on an item
VOTES = pa.schema(
    [
        ("sample_id", pa.string()),
        ("metric", pa.string()),
        ("stage", pa.string()),  # the stage that labels the items
        ("item_id", pa.string()),  # <sample_id>:<metric>:<item>; a statement_id or claim_id if the item is one
        ("judge", pa.string()),  # the model
        ("label", pa.string()),  # null for a missing vote
        ("request_id", pa.string()),
        ("error_type", pa.string()),  # the reason for a missing vote; null if its completion has no clear label
        ("error", pa.string()),
    ]
)
# A form of a metric and the published form on the same samples: usage and agreement
CALIBRATION = pa.schema(
    [
        ("form", pa.string()),
        ("settings", pa.list_(pa.string())),  # KEY=VALUE
        ("samples", pa.int64()),
        ("requests", pa.int64()),  # distinct requests, including requests of other forms
        ("calls", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("cost", pa.float64()),
        ("seconds", pa.float64()),  # of requests and local models, one after another
        ("population_size", pa.int64()),  # samples of the input
        ("projected_requests", pa.float64()),  # for all samples of the input, in proportion
        ("projected_calls", pa.float64()),
        ("projected_prompt_tokens", pa.float64()),
        ("projected_completion_tokens", pa.float64()),
        ("projected_cost", pa.float64()),
        ("projected_seconds", pa.float64()),
        ("projected_hours", pa.float64()),  # at the rate limits, with local models on the cores of this start
        ("verdicts", pa.int64()),  # relations of the published form, or covered statements if it has none
        ("kappa", pa.float64()),
        ("kappa_low", pa.float64()),  # 95 %, over queries, like all limits of this table
        ("kappa_high", pa.float64()),
        ("n", pa.int64()),  # samples with a score in both forms
        ("difference", pa.float64()),  # mean score of the form minus the mean score of the published form
        ("difference_low", pa.float64()),
        ("difference_high", pa.float64()),
        ("loa_low", pa.float64()),  # limits of agreement: the range of 95 % of the differences
        ("loa_high", pa.float64()),
        ("tau", pa.float64()),  # Kendall's tau-b of the systems' means
        ("tau_low", pa.float64()),
        ("tau_high", pa.float64()),
        ("same_winner", pa.bool_()),
        ("winner_changes", pa.float64()),  # share of resamples with different best systems
        ("recommended", pa.bool_()),
        ("loa_low_ci_low", pa.float64()),  # 95 % interval of each limit of agreement
        ("loa_low_ci_high", pa.float64()),
        ("loa_high_ci_low", pa.float64()),
        ("loa_high_ci_high", pa.float64()),
        ("task_seconds", pa.float64()),  # the part of seconds of local models in Spark's tasks
        ("projected_task_seconds", pa.float64()),
        ("sample_requests", pa.float64()),  # mean per sample
        ("sample_calls", pa.float64()),
        ("sample_prompt_tokens", pa.float64()),
        ("sample_completion_tokens", pa.float64()),
        ("sample_cost", pa.float64()),
        ("sample_seconds", pa.float64()),
        ("sample_task_seconds", pa.float64()),
    ]
)
# A mean over all samples from judgements of a part and a proxy, or a difference of two systems
ESTIMATES = pa.schema(
    [
        ("metric", pa.string()),  # `labels` for human labels
        ("proxy", pa.string()),  # the metric of the proxy
        ("level", pa.string()),  # overall, system or difference
        ("system", pa.string()),  # null for all
        ("compared_system", pa.string()),  # for a difference, the system that is subtracted from `system`
        ("n", pa.int64()),  # samples without the drawn samples that have no score
        ("judged", pa.int64()),  # samples that the metric judged
        ("undefined", pa.int64()),  # drawn samples whose score is undefined
        ("failed", pa.int64()),  # drawn samples that failed
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("plain_mean", pa.float64()),  # over the judged samples
        ("plain_low", pa.float64()),
        ("plain_high", pa.float64()),
        ("weight", pa.float64()),  # weight of the proxy, 0 to 1
        ("effective_sample_size", pa.float64()),  # judged samples for an equal interval without proxy
        ("p_value", pa.float64()),  # of a difference
        ("p_adjusted", pa.float64()),  # after Benjamini and Hochberg, over the differences of a metric
    ]
)
# Recall of k facts of a ranking, claim recall of k contexts, or F1@K of claims, over all samples or one system
RECALL_CURVE = pa.schema(
    [
        ("system", pa.string()),  # null for all
        ("ranking", pa.string()),  # combined, relevance, salience; contexts; claims (R@K), claims_f1 (F1@K)
        ("k", pa.int64()),
        ("mean", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("n", pa.int64()),  # samples whose recall at k is defined
    ]
)
# A chunk that a search found for a query
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
    "criteria": CRITERIA,
    "citations": CITATIONS,
    "failures": FAILURES,
    "usage": USAGE,
    "summary": SUMMARY,
    "measures_summary": MEASURES_SUMMARY,
    "source_preference": SOURCE_PREFERENCE,
}
TABLES = {
    **RESULT_TABLES,
    "completions": COMPLETIONS,
    **STUDY_TABLES,
    "hits": HITS,
    "beta_sweep": BETA_SWEEP,
    "recall_curve": RECALL_CURVE,
    "repeatability": REPEATABILITY,
    "votes": VOTES,
    "estimates": ESTIMATES,
    "calibration": CALIBRATION,
}
