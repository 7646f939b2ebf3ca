"""Compute the sums for estimates of means over all samples from judged samples and a proxy (methods, section 8).

DuckDB sums the scores of both runs by query in one pass. A few sums per system remain. A proxy needs no judge: it is a
file of scores, or the share of words or vectors that responses have in common with their references or contexts.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from untold.jobs.run.terminal import amount
from untold.jobs.run_tables import RunTables, open_run
from untold.jobs.summary.ranking import check_runs, wanted_metrics
from untold.jobs.summary.score_counts import SILENT, Rows, connect_scores, fetch_rows
from untold.jobs.tables import SAMPLES, SCORES
from untold.udfs.errors import UserError, aside, near_misses
from untold.udfs.retrieval.embedding import find_model, normalised, open_embedder
from untold.udfs.retrieval.local_models import MINILM
from untold.udfs.statistics.prediction_powered import Moments, Stratum, weigh_strata
from untold.udfs.storage import StoragePath
from untold.udfs.texts import words_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


LABELS = "labels"
LABEL_COLUMNS = ("score", "label")
# The share of drawn samples without a score above which a line is printed
MANY_UNSCORED = 0.01
READERS: Mapping[str, Callable[[io.BytesIO], pa.Table]] = {
    ".csv": lambda file: _read_csv(file, ","),
    ".tsv": lambda file: _read_csv(file, "\t"),
    ".jsonl": pyarrow.json.read_json,
    ".parquet": pq.read_table,
}


class EstimateError(UserError):
    """Runs or labels without an estimate. The message names the remedy."""


@dataclass(frozen=True)
class EstimateRequest:
    """The arguments of `untold estimate` and `untold sample-size`.

    `run` has the expensive scores of the judged samples, and `proxy` has cheap scores of all samples. With `labels`,
    human scores of some samples, and without `proxy`, `run` is the proxy. `undefined` is a key of
    `untold.jobs.summary.ranking.UNDEFINED`.
    """

    run: RunTables
    proxy: RunTables | None = None
    labels: str | None = None
    metrics: Sequence[str] | None = None
    proxy_metric: str | None = None
    undefined: str = "mean"

    @property
    def everything(self) -> RunTables:
        """Return the run with all samples."""
        return self.run if self.proxy is None else self.proxy


@dataclass(frozen=True)
class Group:
    """The samples of one system or of all systems: their counts, and the moments for the estimate of their mean."""

    pair: tuple[str, str | None]
    system: str | None
    compared_system: str | None
    judged: int
    rest: int
    undefined: int
    failed: int
    moments: Moments
    # The covariances with each other system, by its name
    cross: Mapping[str, tuple[float, float, float, float]]

    def less(self, other: Group) -> Group:
        """Return the difference to another system."""
        assert self.system is not None
        assert other.system is not None
        counts = {
            name: getattr(self, name) + getattr(other, name) for name in ("judged", "rest", "undefined", "failed")
        }
        cross = self.cross.get(other.system, (0.0, 0.0, 0.0, 0.0))
        moments = self.moments.less(other.moments, cross)
        return replace(self, compared_system=other.system, **counts, moments=moments, cross={})


def read_groups(request: EstimateRequest, notify: Callable[[str], None]) -> list[Group]:
    """Return the groups of samples: per metric all samples, then each system by name."""
    database, pairs = _open(request)
    _note_unmatched(database, request, notify)
    # The columns that stratified the draw of the judged samples
    draw = (request.run.manifest.get("input") or {}).get("draw") or {}
    _sum_up(database, draw.get("stratify") or ())
    weighed = _weigh(fetch_rows(database, _STRATA))
    if not weighed:
        raise EstimateError(
            f"{request.labels or request.run.directory}: none of its samples with a score is in "
            f"{request.everything.directory}. The proxy must have all samples, with the same sample_id"
        )
    database.register("weighed", pa.Table.from_pylist([row for rows in weighed.values() for row in rows]))
    database.execute(_INFLUENCE)
    crossed: dict[tuple[Any, ...], dict[str, tuple[float, float, float, float]]] = defaultdict(dict)
    for row in fetch_rows(database, _CROSSED):
        sums = (row["scores"], row["score_shift"], row["shift_score"], row["shifts"])
        crossed[row["pair"], row["level"], row["first"]][row["second"]] = sums
        if row["first"] != row["second"]:
            turned = (row["scores"], row["shift_score"], row["score_shift"], row["shifts"])
            crossed[row["pair"], row["level"], row["second"]][row["first"]] = turned
    unscored = {(row["pair"], row["level"], row["system"]): row for row in fetch_rows(database, _UNSCORED)}
    groups = []
    for key, rows in weighed.items():
        moments = _moments(rows, crossed[key][key[2]])
        counts = {name: sum(row[name] for row in rows) for name in ("judged", "rest")}
        counts |= {name: unscored[key][name] for name in ("undefined", "failed")}
        system = key[2] if key[1] else None
        groups.append(Group(pairs[key[0]], system, None, **counts, moments=moments, cross=crossed[key]))
    _note_unscored(groups, notify)
    return groups


def _weigh(strata: Rows) -> dict[tuple[int, int, str], Rows]:
    """Return the strata of each group with judged samples in their order, with the weights of their samples."""
    found = {}
    names = list(Stratum.__annotations__)
    for key, group in groupby(strata, key=itemgetter("pair", "level", "system")):
        own = list(group)
        if not any(row["judged"] for row in own):
            continue
        clustered = max(row["largest"] for row in own) > 1
        weighed = weigh_strata([Stratum(*(row[name] for name in names)) for row in own], clustered=clustered)
        found[key] = [
            {**row, "clustered": clustered, **{f"w_{name}": value for name, value in vars(one).items()}}
            for row, one in zip(own, weighed, strict=True)
        ]
    return found


def _moments(rows: Rows, own: tuple[float, float, float, float]) -> Moments:
    """Return the moments of a group from its strata and the sums over its clusters."""
    judged = sum(row["w_judged"] * row["score"] for row in rows)
    shift = sum(row["w_rest"] * row["proxy_rest"] - row["w_shift"] * row["proxy"] for row in rows)
    variance, covariance, _, shift_variance = own
    row, pooled = rows[0], None
    # One stratum without clusters: the variance of the shift from the variance of the proxy over all samples
    if len(rows) == 1 and not row["clustered"] and row["rest"]:
        number = row["judged"] + row["rest"]
        mean = (row["proxy"] + row["proxy_rest"]) / number
        of_proxy = (row["squares"] - number * mean * mean) / (number - 1)
        pooled = float(of_proxy * (1 / row["judged"] + 1 / row["rest"]))
    return Moments(judged, shift, variance, covariance, shift_variance, pooled)


def _open(request: EstimateRequest) -> tuple[DuckDBPyConnection, list[tuple[str, str | None]]]:
    """Return a database with the views `cheap` (proxy scores of all samples), `dear` (judged samples) and `pairs`."""
    labelled = request.labels is not None
    runs = [request.run, request.everything]
    check_runs([request.run] if request.proxy is None else runs)
    pairs = _pair(request)
    database = connect_scores(runs, None)
    score = "score_zero" if request.undefined == "zero" else "score"
    if labelled:
        database.register("labels", _read_labels(str(request.labels)))
        judged = f"""select sample_id, '{LABELS}' as metric, avg(score) as score, 'ok' as status from labels
            where score is not null group by sample_id"""
    else:
        judged = f"select sample_id, metric, {score} as score, status from judged where output = 0"
    proxied = request.proxy is not None or labelled
    database.execute(f"create view dear as {judged}")
    database.execute(
        f"""create view cheap as select sample_id, metric, system,
                {score if proxied else "0.0"} as proxy from judged where output = 1"""
    )
    numbered = [
        {"pair": place, "metric": metric, "proxy": metric if proxy is None else proxy}
        for place, (metric, proxy) in enumerate(pairs)
    ]
    database.register("pairs", pa.Table.from_pylist(numbered))
    return database, pairs


def _pair(request: EstimateRequest) -> list[tuple[str, str | None]]:
    """Return each estimated metric with its proxy. Raises EstimateError for an ambiguous proxy."""
    everything = request.everything
    proxies = list(wanted_metrics([everything], request.proxy_metric and [request.proxy_metric]))
    if request.labels is not None:
        return [(LABELS, proxy) for proxy in proxies]
    metrics = wanted_metrics([request.run], request.metrics)
    if request.proxy is None:
        return [(metric, None) for metric in metrics]
    found: list[tuple[str, str | None]] = []
    for metric in metrics:
        if metric not in proxies and len(proxies) > 1:
            raise EstimateError(
                f"{everything.directory} has no metric {metric}. Set --proxy-metric to one of {', '.join(proxies)}"
            )
        found.append((metric, metric if metric in proxies else proxies[0]))
    return found


def _read_csv(file: io.BytesIO, delimiter: str) -> pa.Table:
    """Return the rows of a file. Quoted texts may have line breaks, and ids such as 007 keep their zeros."""
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    converting = pyarrow.csv.ConvertOptions(column_types={"sample_id": pa.string()})
    return pyarrow.csv.read_csv(file, parse_options=parsing, convert_options=converting)


def _read_labels(path: str) -> pa.Table:
    """Return sample_id and score of a file of labels. Raises EstimateError for a file without these columns."""
    place, suffix = StoragePath(path), suffix_of(path)
    if suffix not in READERS:
        raise EstimateError(f"{path}: labels must be a file of {', '.join(READERS)}")
    try:
        rows = READERS[suffix](io.BytesIO(place.read_bytes()))
    except FileNotFoundError as error:
        raise EstimateError(f"{path}: no such file") from error
    except pa.ArrowInvalid as error:
        raise EstimateError(f"{path} cannot be read as {suffix[1:]}. Give a file with sample_id and score") from error
    name = next((name for name in LABEL_COLUMNS if name in rows.column_names), None)
    if name is None or "sample_id" not in rows.column_names:
        near = aside(near_misses("sample_id" if name else "score", rows.column_names))
        raise EstimateError(
            f"{path}: labels need the columns sample_id and score{near}. It has {', '.join(rows.column_names)}"
        )
    return pa.table({"sample_id": pc.cast(rows["sample_id"], pa.string()), "score": numbers_in(path, rows, name)})


def suffix_of(path: str) -> str:
    """Return the ending of a path in the form of the keys of `READERS`."""
    return "." + StoragePath(path).name.rpartition(".")[2].lower()


def numbers_in(path: str, rows: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column of numbers of a file. Raises EstimateError for other values."""
    try:
        return pc.cast(rows[name], pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise EstimateError(f"{path}: column {name} must be numbers, such as 0, 0.5 and 1") from error


# One row per sample and metric, with its query as a number. The mean of the proxy replaces a missing proxy
_JOINED = """create view joined as
    select pair, c.system, {stratum} as stratum,
        case when a.query is null then hash(c.sample_id) else hash(a.query) end as cluster,
        coalesce(c.proxy, m.mean, 0) as proxy, d.score, d.status
    from cheap c join pairs p on c.metric = p.proxy
        join (select metric, avg(proxy) as mean from cheap group by metric) m on c.metric = m.metric
        left join (select * from samples where output = 1) a on a.sample_id = c.sample_id
        left join dear d on d.sample_id = c.sample_id and d.metric = p.metric"""
# `level`: 0 for all samples, 1 for one system. A drawn sample without a score counts as undefined or failed, and does
# not belong to the rest
_CELLS = f"""create temp table cells as
    select pair, 1 - grouping(j.system) as level, coalesce(j.system, '') as system, stratum, cluster,
        count(score) as judged, count(*) filter (status is null) as rest,
        coalesce(sum(score), 0) as score,
        coalesce(sum(proxy) filter (score is not null), 0) as proxy,
        coalesce(sum(proxy) filter (status is null), 0) as proxy_rest,
        coalesce(sum(proxy * proxy) filter (status is null or score is not null), 0) as squares,
        count(*) filter (status is not null and score is null and status in ({SILENT})) as undefined,
        count(*) filter (status is not null and score is null and status not in ({SILENT})) as failed
    from joined j group by grouping sets ((pair, j.system, stratum, cluster), (pair, stratum, cluster))
    having grouping(j.system) = 1 or j.system is not null"""
_STRATA = """select pair, level, system, stratum, sum(judged)::bigint as judged, sum(rest)::bigint as rest,
        count(*) filter (judged > 0) as clusters, max(judged + rest)::bigint as largest, sum(score) as score,
        sum(proxy) as proxy, sum(proxy_rest) as proxy_rest, sum(squares) as squares
    from cells group by pair, level, system, stratum having sum(judged + rest) > 0
    order by pair, level, system, stratum"""
_UNSCORED = """select pair, level, system, sum(undefined)::bigint as undefined, sum(failed)::bigint as failed
    from cells group by pair, level, system"""
# The contributions of each query to the mean of the judged samples and to the shift of the proxy
_INFLUENCE = """create temp table influence as
    select pair, level, system, cluster,
        sum(w_factor * w_judged * (c.score - c.judged * w_score_mean)) as score,
        sum(w_rest * (c.proxy_rest - c.rest * w_rest_mean)
            - w_factor * w_shift * (c.proxy - c.judged * w_proxy_mean)) as shift
    from cells c join weighed using (pair, level, system, stratum) group by pair, level, system, cluster"""
_CROSSED = """select pair, level, a.system as first, b.system as second, sum(a.score * b.score) as scores,
        sum(a.score * b.shift) as score_shift, sum(a.shift * b.score) as shift_score, sum(a.shift * b.shift) as shifts
    from influence a join influence b using (pair, level, cluster) where a.system <= b.system
    group by pair, level, a.system, b.system order by pair, level, first, second"""


def _sum_up(database: DuckDBPyConnection, strata: Sequence[str]) -> None:
    """Create `cells`: sums by metric, system, stratum and query. Raises EstimateError for a missing column."""
    columns = database.sql("from samples").columns
    for name in strata:
        if name not in columns:
            raise EstimateError(f"the samples were drawn by {name}, which the samples of the proxy do not have")
    values = ", ".join(f"""a."{name.replace('"', '""')}"::varchar""" for name in strata)
    stratum = f"to_json([{values}])::varchar" if strata else "''"
    database.execute(_JOINED.format(stratum=stratum))
    database.execute(_CELLS)


def _note_unmatched(database: DuckDBPyConnection, request: EstimateRequest, notify: Callable[[str], None]) -> None:
    """Note the judged samples without a proxy, and judged samples that are not a random draw."""
    ((missing,),) = database.sql(
        "select count(distinct sample_id) from dear anti join cheap using (sample_id)"
    ).fetchall()
    everything = request.everything.directory
    if missing:
        samples = amount(missing, "sample is", "samples are")
        notify(f"{request.labels or request.run.directory}: {samples} not in {everything}, and left out")
    given = request.run.manifest.get("input") or {}
    if request.labels is None and request.proxy is not None and given.get("limit") is not None:
        notify(f"{request.run.directory}: its samples are the first by id (--limit) and not random (--random)")


def _note_unscored(groups: Sequence[Group], notify: Callable[[str], None]) -> None:
    """Note the number of drawn samples without a score if it is large."""
    for group in groups:
        lost = group.undefined + group.failed
        if group.system is None and lost > MANY_UNSCORED * (lost + group.judged):
            notify(
                f"{group.pair[0]}: {lost:,} of {lost + group.judged:,} drawn samples have no score "
                f"({group.undefined:,} undefined, {group.failed:,} failed). The mean covers samples with a score"
            )


TEXTS = ("response", "contexts", "references")
# The training length of the model. Longer texts are cut
MAX_TOKENS = 256
Scores = list[float | None]
Texts = Sequence[tuple[str, Sequence[str]]]
"""Responses, each with its references, or with its contexts if it has no references."""


@dataclass(frozen=True, repr=False)
class ProxyRun(RunTables):
    """Proxy scores in memory as the tables `samples` and `scores` of a run."""

    frames: Mapping[str, pa.Table]

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the two tables."""
        return tuple(self.frames)

    def select_from(self, database: DuckDBPyConnection, name: str) -> str:
        """Return SQL for all rows of a table."""
        database.register(f"proxy_{name}", self.frames[name])
        return f"from proxy_{name}"


def open_proxy(proxy: str, run: RunTables, samples: str | None = None) -> RunTables:
    """Return the proxy of all samples: `words` or `vectors` of their texts, a file of sample_id and score, or a run.

    samples: the file or folder of all samples. The default for `words` and `vectors` is the input of `run`. A file of
    scores needs no samples, because it can have the columns system and query. Raises EstimateError for files without
    the columns.
    """
    if proxy in MEASURES:
        path = samples or str((run.manifest.get("input") or {}).get("path") or "")
        rows = _read(path, ("sample_id", "response"), "give --input with all samples")
        return _proxy_run(path, proxy, rows, MEASURES[proxy](list(map(_texts_of, rows.to_pylist()))))
    if suffix_of(proxy) not in READERS:
        return open_run(proxy)
    rows = _read(proxy, ("sample_id", "score"), "a proxy is a file of sample_id and score")
    scores = dict(zip(_ids(rows), numbers_in(proxy, rows, "score").to_pylist(), strict=True))
    if samples is not None:
        rows = _read(samples, ("sample_id",), "give --input with all samples")
    return _proxy_run(proxy, "score", rows, [scores.get(name) for name in _ids(rows)])


def _proxy_run(path: str, metric: str, rows: pa.Table, scores: Scores) -> ProxyRun:
    """Return the run of these scores, one score per row."""
    ids = pa.array(_ids(rows), pa.string())
    kept = {name: rows[name] for name in rows.column_names if name not in (*TEXTS, "score")} | {"sample_id": ids}
    for name in ("query", "system"):
        kept[name] = kept[name].cast(pa.string()) if name in kept else pa.nulls(len(rows), pa.string())
    known = {"sample_id": ids, "system": kept["system"], "score": pa.array(scores, pa.float64())}
    table = pa.table({**known, "metric": [metric] * len(rows), "status": ["ok"] * len(rows)})
    frames = {"samples": _whole(pa.table(kept), SAMPLES), "scores": _whole(table, SCORES)}
    digest = sha256(json.dumps([ids.to_pylist(), scores]).encode()).hexdigest()
    manifest = {"status": "finished", "metrics": [metric], "identity": {"input": digest, "dataset": "proxy"}}
    return ProxyRun(path, manifest, frames)


def _whole(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with all columns of a table. Missing columns are null."""
    for column in schema:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows


def share_words(texts: Texts) -> Scores:
    """Return the share of the words of the references or contexts that a response has, or None without words.

    >>> share_words([("The Seine is in Paris.", ["Paris is on the Seine.", "Lyon is not."]), ("Yes.", [])])
    [0.5, None]
    """
    found: Scores = []
    for response, grounds in texts:
        wanted = frozenset[str]().union(*map(words_of, grounds))
        found.append(len(wanted & words_of(response)) / len(wanted) if wanted else None)
    return found


def share_vectors(texts: Texts) -> Scores:
    """Return the mean cosine of a response with its references or contexts, or None without them.

    The embedding model is minilm. Raises LocalModelFileError if the model is not installed.
    """
    distinct = sorted({text for response, grounds in texts for text in (response, *grounds)})
    embedder = open_embedder(find_model(MINILM), "mean", MAX_TOKENS)
    vectors = normalised(embedder.embed(distinct)) if distinct else np.empty((0, 0), np.float32)
    place = {text: number for number, text in enumerate(distinct)}
    return [
        float((vectors[[place[one] for one in grounds]] @ vectors[place[response]]).mean()) if grounds else None
        for response, grounds in texts
    ]


MEASURES: Mapping[str, Callable[[Texts], Scores]] = {"words": share_words, "vectors": share_vectors}


def _texts_of(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the response, and its references or contexts."""
    given = row.get("references") or row.get("contexts") or []
    parts = [given] if isinstance(given, str) else given
    texts = [one if isinstance(one, str) else (one or {}).get("text") for one in parts]
    return str(row["response"] or ""), [text for text in texts if text]


def _ids(rows: pa.Table) -> list[str]:
    found: list[str] = rows["sample_id"].cast(pa.string()).to_pylist()
    return found


def _read(path: str, needed: Sequence[str], hint: str) -> pa.Table:
    """Return the rows of a file, or of the Parquet files of a folder. Raises EstimateError."""
    place = StoragePath(path)
    try:
        if suffix_of(path) in READERS:
            rows = READERS[suffix_of(path)](io.BytesIO(place.read_bytes()))
        else:
            files = sorted(str(one.place) for one in place.entries() if one.name.endswith(".parquet"))
            rows = pa.concat_tables(READERS[".parquet"](io.BytesIO(StoragePath(file).read_bytes())) for file in files)
    except (OSError, pa.ArrowInvalid) as error:
        raise EstimateError(f"{path or 'no samples'} cannot be read; {hint}") from error
    missing = [name for name in needed if name not in rows.column_names]
    if missing:
        near = aside(near_misses(missing[0], rows.column_names))
        raise EstimateError(f"{path} has no column {missing[0]}{near}; {hint}")
    return rows
