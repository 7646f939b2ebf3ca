"""Citations (TREC RAG, DeepResearch Bench; docs/methods.md, section 19): the sentences that their sources support.

A judge labels each sentence by each of its sources, and by its sources together. Sources are contexts of the sample,
documents of an index, or texts of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from untold.jobs.inputs.checking import head_unit, input_files
from untold.jobs.inputs.files import AS_THEY_ARE, InputFile, SampleError, listing_of
from untold.jobs.inputs.reading import read_texts
from untold.jobs.metrics import base
from untold.jobs.metrics.judging import NumberedList
from untold.jobs.metrics.panel import ordered, vote_rows
from untold.jobs.metrics.settings import CitationsSettings
from untold.jobs.metrics.views import CitationView
from untold.jobs.retrieval.sources import catalog_in, row_ranges
from untold.jobs.run.manifest import read_manifest
from untold.jobs.run.session import spark_schema
from untold.jobs.settings.model import Settings
from untold.udfs.facts import citation_measures
from untold.udfs.retrieval.index_table import CHUNK_TEXTS, Catalog, read_documents
from untold.udfs.samples.file_records import READERS
from untold.udfs.storage import absolute

NAME, JUDGE = "citations", "judge_support"
# The names of the columns of texts by id or URL
PAGE = {
    "document_id": ("document_id", "id", "docid"),
    "url": ("url",),
    "text": ("text", "contents", "content", "url_content", "segment"),
}
SUPPORTS = ordered(*citation_measures.WEIGHTS)
_OPTIONAL = ("citations", "reference_sources")
UNKNOWN = base.bounds_of(citation_measures.SHARES, *citation_measures.COUNTS, *citation_measures.SUMS)


def digests(settings: Settings) -> dict[str, str]:
    """Return the digest of the sources in files or in an index. Raises UserError for sources that cannot be used."""
    if settings.citations.sources is None:
        return {}
    path = absolute(settings.citations.sources)
    catalog = _catalog(path)
    return {"citations.sources": catalog.digest if catalog else str(listing_of(_page_files(path))["digest"])}


def _catalog(path: str) -> Catalog | None:
    """Return the index in a folder, or None for another path."""
    return catalog_in(read_manifest(path), path)


def _page_files(path: str) -> list[InputFile]:
    """Return the files with texts. Raises SampleError if there are none, or if the first lacks a column."""
    files, _ = input_files(path, None, AS_THEY_ARE)
    first = next(READERS[files[0].kind](head_unit(files[0])), None)
    columns = set(files[0].types or ()) | set(first.values if first else ())
    named = {name for name, names in PAGE.items() if columns.intersection(names)}
    if "text" not in named or named == {"text"}:
        raise SampleError(
            f"citations.sources: {files[0].path} has no url or document_id, or no text. Rename its columns"
        )
    return files


def assume(settings: Settings) -> base.Assumptions:
    """Assume full support for each sentence."""
    return base.Assumptions(settings, {JUDGE: _lists(settings).assumed(citation_measures.FULL)})


def _lists(settings: Settings) -> NumberedList:
    outputs = {"supports": "verdict", "reasons": "reason"}
    return NumberedList(JUDGE, settings.citations.list_size, {"sentences": "text"}, outputs)


def score(samples: DataFrame, tools: base.Tools, settings: Settings) -> base.Tables:
    """Score valid samples (columns of the table `samples`): the tables of `METRIC`.

    A lost verdict, and a source without a text, leave values with bounds. Equal sentences with equal sources share
    their requests.
    """
    calls, score = base.StageCalls(NAME, tools), settings.citations.score
    judged, votes = judge_sentences(samples, calls, settings)
    concluded = tools.keep(_conclude(samples, judged, score), "concluded")
    known = _with_status(samples, concluded)
    return {
        "citations": base.contract_rows("citations", NAME, concluded.select("sample_id", F.inline("citations"))),
        "scores": base.measured_scores(known, NAME, score, F.lit(0), always=True),
        "measures": base.bounded_measures(known, NAME),
        "failures": calls.failures(),
        **votes,
    }


def judge_sentences(
    samples: DataFrame, calls: base.StageCalls, settings: Settings
) -> tuple[DataFrame, Mapping[str, DataFrame]]:
    """Return sample_id, sentences, judged and waiting, as `citation_measures.conclude_batches` reads them, and votes.

    The result has a row per sample, and the requests are recorded. samples: sample_id, response, contexts, and
    citations if the input has them. waiting is true if a sentence was not requested. Only a panel has the table votes.
    """
    own, tools = settings.citations, calls.tools
    given = samples.select("sample_id", "response", "contexts", *base.optional_columns(samples, ("citations",)))
    cited = tools.keep(base.map_rows(given, citation_measures.cite_batches), "cited-sentences")
    if own.sources is not None:
        cited = tools.keep(_with_pages(cited, _pages(cited, absolute(own.sources), settings)), "sources-with-texts")
    asked = _lists(settings).judge(tools, settings, SUPPORTS, _to_judge(cited), "sample_id", "group")
    judged = calls.record(JUDGE, tools.keep(asked, "judged-citations"))
    verdicts = base.collect(judged, "judged", "group", "number", "verdict", "reason", "error_type")
    rows = cited.withColumn("sentences", F.transform("sentences", _without_texts))
    votes = vote_rows(NAME, JUDGE, judged, "number", F.translate("group", citation_measures.AND, "|"))
    return rows.join(verdicts, on="sample_id", how="left"), votes


def _pages(cited: DataFrame, path: str, settings: Settings) -> DataFrame:
    """Return key, text of each cited source without a text that files or an index have."""
    spark = cited.sparkSession
    if catalog := _catalog(path):
        read = partial(read_documents, index=path, version=catalog.version, overlap=catalog.making.overlap)
        rows = row_ranges(spark, catalog.chunks).mapInArrow(read, spark_schema(CHUNK_TEXTS))
    else:
        found = read_texts(spark, path, PAGE, ("text",), AS_THEY_ARE, key="document_id").rows
        rows = found.where(F.col("error").isNull()).withColumn("number", F.lit(0).cast("long"))
    pages = base.map_rows(rows.select("document_id", "url", "number", "text"), citation_measures.key_pages)
    wanted = _sources(cited).where(F.col("text").isNull()).select("key").distinct()
    parts = F.array_sort(F.collect_set(F.struct("number", "text")))
    by_key = pages.join(wanted, on="key", how="left_semi").groupBy("key").agg(parts.alias("parts"))
    return by_key.select("key", F.concat_ws(" ", F.transform("parts", lambda one: one["text"])).alias("text"))


def _sources(cited: DataFrame) -> DataFrame:
    """Return sample_id, number and sentence, and source, key and text of each citation."""
    sentences = cited.select("sample_id", F.explode("sentences").alias("one"))
    named = sentences.select("sample_id", "one.number", F.col("one.text").alias("sentence"), "one.sources")
    return named.select("sample_id", "number", "sentence", F.inline("sources"))


def _with_pages(cited: DataFrame, pages: DataFrame) -> DataFrame:
    """Return the cited sentences with the texts of pages for sources without a text."""
    missing = _sources(cited).where(F.col("text").isNull()).select("sample_id", "key").distinct()
    found = missing.join(pages, on="key", how="inner").groupBy("sample_id")
    by_sample = found.agg(F.map_from_entries(F.collect_list(F.struct("key", "text"))).alias("pages"))

    def source(one: Column) -> Column:
        return one.withField("text", F.coalesce(one["text"], F.try_element_at("pages", one["key"])))

    def sentence(one: Column) -> Column:
        return one.withField("sources", F.transform(one["sources"], source))

    joined = cited.join(by_sample, on="sample_id", how="left")
    return joined.select("sample_id", F.transform("sentences", sentence).alias("sentences"))


def _to_judge(cited: DataFrame) -> DataFrame:
    """Return sample_id, group, sources and listed, which has the sentences of each source or set of sources."""
    item = F.struct("number", F.col("sentence").alias("text")).alias("item")
    single = _sources(cited).where(F.col("text").isNotNull())
    alone = single.select("sample_id", F.col("key").alias("group"), F.array("text").alias("sources"), item)
    sentences = cited.select("sample_id", F.explode("sentences").alias("one"))
    known = F.filter("one.sources", lambda source: source["text"].isNotNull()).alias("known")
    several = sentences.select("sample_id", "one.number", F.col("one.text").alias("sentence"), known)
    together = several.where(F.size("known") > 1).select(
        "sample_id",
        F.array_join(F.col("known.key"), citation_measures.AND).alias("group"),
        F.col("known.text").alias("sources"),
        item,
    )
    groups = alone.unionByName(together).groupBy("sample_id", "group")
    return groups.agg(F.any_value("sources").alias("sources"), F.array_sort(F.collect_list("item")).alias("listed"))


def _conclude(samples: DataFrame, judged: DataFrame, score: str) -> DataFrame:
    """Return the columns of `CONCLUDED`, and waiting: true if a sentence was not requested. A row per sample."""
    reference = samples.select("sample_id", *base.optional_columns(samples, ("reference_sources",)))
    rows = judged.join(reference, on="sample_id", how="inner")
    return base.conclude(rows, citation_measures.conclude_batches, score=score)


def _without_texts(sentence: Column) -> Column:
    sources = F.transform(
        sentence["sources"], lambda one: one.withField("has_text", one["text"].isNotNull()).dropFields("text")
    )
    return sentence.withField("sources", sources)


def _with_status(samples: DataFrame, concluded: DataFrame) -> DataFrame:
    """Return sample_id, system, status, and the columns of `CONCLUDED`: a row per sample.

    A sample is undefined if its sources have no text, or if it has no sentence. A source without a text is no failure.
    """
    waiting, is_open, has_lost = F.coalesce("waiting", F.lit(False)), ~F.col("known"), F.col("lost") > 0
    flags = concluded.withColumns(
        {"lost": is_open & has_lost & ~waiting, "empty": is_open & ~has_lost, "partly": has_lost}
    )
    return base.with_status(samples, flags, partial=F.col("partly"))


METRIC = base.Metric(
    name=NAME,
    stages=lambda _: (JUDGE,),
    score=score,
    assume=assume,
    sections={NAME: CitationsSettings},
    judged=lambda _: (JUDGE,),
    settings=(NAME, "index"),
    digests=digests,
    tables=("citations", "scores", "measures", "failures"),
    needs=("query", "response"),
    reads=_OPTIONAL,
    unknown=UNKNOWN,
    view=CitationView,
)
