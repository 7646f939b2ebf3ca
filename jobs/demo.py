"""The demo: six short samples by e2e, each result as it comes, or by icat; beside them what a person would expect."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from untold.jobs.inference.backends import local_model
from untold.jobs.inference.stage.bindings import bind_stage
from untold.jobs.inference.store.store import stage_folder
from untold.jobs.metrics.scoring import ScoreRequest
from untold.jobs.run.terminal import page_of, print_lines, table
from untold.jobs.run_tables import RunTables, UnreadableRunError, open_run
from untold.jobs.settings.model import Settings
from untold.udfs.facts.aspect_coverage import FACT, ICAT
from untold.udfs.facts.claim_verdicts import SUPPORTED
from untold.udfs.llm.keys import Stage
from untold.udfs.llm.usage import shown_tokens
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import Unparsable
from untold.udfs.storage import read_lines

STAGE = "evaluate_coverage"
# Half of the second within which a result is to be seen; the store has a new file a second
LOOK_SECONDS = 0.5
# Of one judgement of the shipped samples, and once for all what they share: tokens read and tokens written
SHARED_TOKENS, READ_TOKENS, WRITTEN_TOKENS = 460, 150, 90
# What one thread of a slow laptop reads and writes in a second; a quick one does four times as much. A core of a
# server (EPYC, AVX-512) read 36 and wrote 10 a second of its own time
READ_A_SECOND, WRITTEN_A_SECOND = 25.0, 6.0
QUICKER = 4
# The bus of the memory feeds so many threads that write; reading goes on getting quicker with more
MOST_WRITING = 4
# Tokens that are read in the time that one is written takes, by these two speeds
READ_FOR_ONE_WRITTEN = READ_A_SECOND / WRITTEN_A_SECOND
TOKENS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens", "tokens_estimated")
# A claim is held against so many chunks: of fifteen documents, each a chunk, one is about what it says
CHUNKS = 3
COLUMNS = ("request_id", "text", *TOKENS, "seconds", "answered_at")


def demo_settings(settings: Settings, folder: Path, index: str | None = None) -> Settings:
    """The settings with what the demo is about: short contexts, short prompts, and its index where there is one."""
    changed: dict[str, Any] = {"summarise_contexts": False, "prompts_dir": settings.prompts_dir or str(folder)}
    if index is not None:
        looked_up = {"source": "index", "index": index, "top_k": min(CHUNKS, settings.knowledge.top_k)}
        changed["knowledge"] = settings.knowledge.model_copy(update=looked_up)
    return settings.model_copy(update=changed)


@dataclass
class Spent:
    """What judgements took so far. `prompt_tokens` include `cached_tokens`, those that a prompt cache had."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    estimated: bool = False
    first_sent: datetime | None = None
    last_came: datetime | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row of completions. Calls wait for each other in the server, so that their seconds have no sum."""
        self.prompt_tokens += row["prompt_tokens"] or 0
        self.cached_tokens += row["cached_prompt_tokens"] or 0
        self.written_tokens += row["completion_tokens"] or 0
        self.estimated |= bool(row["tokens_estimated"])
        if row["answered_at"] is not None:
            sent = row["answered_at"] - timedelta(seconds=row["seconds"] or 0)
            self.first_sent = min(sent, self.first_sent or sent)
            self.last_came = max(row["answered_at"], self.last_came or row["answered_at"])

    def seconds_for(self, count: int) -> float | None:
        """What so many more judgements will take at the speed so far; None where nothing tells."""
        worked = _work(self.prompt_tokens - self.cached_tokens, self.written_tokens)
        if self.first_sent is None or self.last_came is None or not worked:
            return None
        return (self.last_came - self.first_sent).total_seconds() / worked * count * _work(READ_TOKENS, WRITTEN_TOKENS)


@dataclass
class _DemoJudgements:
    """The judgements of the demo's samples, as they arrive in the store. `waiting`: request id -> sample.

    It reads the store's files beside the run, by name and each once, and knows nothing of snapshots: what compaction
    merges it has seen, or passes over.
    """

    folder: Path
    waiting: dict[str, dict[str, Any]]
    files: set[str] = field(default_factory=set)
    spent: Spent = field(default_factory=Spent)

    def take(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """sample_id and statements of what is new. What cannot be read yet, or at all, is left to the run itself."""
        for path in sorted(self.folder.glob("*.parquet")):
            if path.name[0] in "._" or path.name in self.files:
                continue
            with suppress(OSError, pa.ArrowException):
                rows = pq.read_table(path, columns=list(COLUMNS))
                self.files.add(path.name)
                for row in rows.to_pylist():
                    yield from self._read(row)

    def _read(self, row: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """The judgement in a row of completions, if the demo waits for it and it can be parsed."""
        sample = self.waiting.get(row["request_id"])
        with suppress(Unparsable):
            if sample is not None and row["text"] is not None:
                statements = STAGES[STAGE].parse(row["text"], sample["variables"])["statements"]
                del self.waiting[row["request_id"]]
                self.spent.add(row)
                yield sample["sample_id"], statements


@contextmanager
def showing_results(request: ScoreRequest, say: Callable[[str], None]) -> Iterator[None]:
    """Says what is to be judged and how long that may take, then each result within a second of its coming.

    From the first result on it says how long the rest takes at the speed of those that came: machines differ tenfold,
    and one machine does as its neighbours let it.
    """
    settings, embedded = request.settings, request.embedded
    sha256 = local_model.model_file(settings.llm.local_model).sha256 if embedded else None
    stage = bind_stage(STAGE, settings, embedded_model=sha256)
    answers = _DemoJudgements(Path(stage_folder(request.store, stage)), _requests(Path(request.input), stage))
    known = sum(1 for _ in answers.take())
    say(describe_work(len(answers.waiting), known, local_model.threads() if embedded else None))
    # What earlier starts read is no part of this one
    answers.spent = Spent()
    ended = Event()
    watching = Thread(target=_keep_showing, args=(answers, say, ended, embedded), daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        if spent := answers.spent.prompt_tokens:
            share = answers.spent.cached_tokens / spent
            tokens = shown_tokens(spent, estimated=answers.spent.estimated)
            say(f"{share:.0%} of {tokens} tokens of prompts came from the cache")


def _requests(samples: Path, stage: Stage) -> dict[str, dict[str, Any]]:
    """By request id: sample_id and variables of the samples, whose ids are those that the run itself will make."""
    found = {}
    for row in read_lines(samples):
        contexts = [context["text"] for context in row["contexts"]]
        variables = {"query": row["query"], "contexts": contexts, "response": row["response"]}
        found[stage.request_id(variables)] = {"sample_id": row["sample_id"], "variables": variables}
    return found


def _keep_showing(answers: _DemoJudgements, say: Callable[[str], None], ended: Event, timed: bool) -> None:
    """Says what is new in the store until the end, in a thread beside the run; `timed`: and how long the rest takes."""
    last = False
    while not last:
        # Once more after the end: the last answers are written just before
        last = ended.wait(LOOK_SECONDS)
        for sample_id, statements in answers.take():
            covered = sum(1 for statement in statements if statement["covered"])
            left = answers.spent.seconds_for(len(answers.waiting)) if timed and answers.waiting else None
            to_go = f"; about {_minutes(left)} minutes to go" if left is not None else ""
            say(f"{sample_id}: {covered} covered, {len(statements) - covered} left out{to_go}")


def describe_work(count: int, known: int, threads: int | None) -> str:
    """How many judgements are to come and, for the embedded model with so many threads, about how many minutes.

    >>> describe_work(2, 4, None)
    '2 judgements to make (4 known from before)'
    """
    before = f" ({known} known from before)" if known else ""
    if not count or threads is None:
        return f"{count} judgements to make{before}"
    read = (SHARED_TOKENS + count * READ_TOKENS) / (READ_A_SECOND * threads)
    written = count * WRITTEN_TOKENS / (WRITTEN_A_SECOND * min(threads, MOST_WRITING))
    slow, quick = read + written, (read + written) / QUICKER
    what = f"{count} judgements to make{before} on {threads} thread{'s' if threads > 1 else ''}"
    return (
        f"{what}: {_minutes(quick)} to {_minutes(slow)} minutes on an idle machine, and half a minute for Spark and Ray"
    )


def _work(read: int, written: int) -> float:
    """What reading and writing so many tokens takes, in tokens written."""
    return read / READ_FOR_ONE_WRITTEN + written


def _minutes(seconds: float) -> str:
    """Minutes with one digit, 0.1 at least: nothing takes no time."""
    return f"{max(seconds / 60, 0.1):.1f}"


def show_expected(output: str, folder: Path, metric: str) -> None:
    """Prints one line a demo sample beside what a person expects; nothing where the run left no scores.

    folder: with JSON Lines of sample_id and what a person judged: `expected.jsonl`, score and statements, each with
    `covered`; `expected_claims.jsonl`, claims, each with `supported` by the documents.
    """
    name, tables, lines = _EXPECTED[metric]
    expected = read_lines(folder / name)
    try:
        run = open_run(output, allow_running=True)
        found = {table: _by_sample(run, table) for table in tables}
    except (UnreadableRunError, OSError, pa.ArrowInvalid):
        return
    if found["scores"] and expected:
        print_lines(["", *lines(expected, found)])


# By table and sample_id, the rows of a run
_Found = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def _by_sample(run: RunTables, name: str) -> dict[str, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in run.table(name).to_pylist():
        found[row["sample_id"]].append(row)
    return found


def _beside_coverage(expected: Sequence[Mapping[str, Any]], found: _Found) -> list[str]:
    """The lines of e2e: scores and statements."""
    rows = []
    for wanted in expected:
        score = _first(found["scores"], wanted)
        covered = [statement["covered"] for statement in wanted["statements"]]
        numbers = [_number(score.get("score")), _number(wanted["score"])]
        rows.append([wanted["sample_id"], *numbers, _both(score), _counts(covered)])
    heads = ["sample", "score", "expected", "statements", "expected"]
    title = "result and human expectation (statements covered / uncovered)"
    return [title, *table(heads, rows, page_of(sys.stdout))]


def _beside_claims(expected: Sequence[Mapping[str, Any]], found: _Found) -> list[str]:
    """The lines of icat: scores and claims, then each claim's verdict."""
    rows, verdicts = [], []
    for wanted in expected:
        sample = wanted["sample_id"]
        measures = {row["measure"]: row["value"] for row in found["measures"].get(sample, ())}
        claims = sorted(found["claims"].get(sample, ()), key=lambda row: int(row["position"]))
        hoped = [claim["supported"] for claim in wanted["claims"]]
        scores = [_number(value) for value in (measures.get(ICAT), measures.get(FACT), sum(hoped) / len(hoped))]
        supported = _counts([row["verdict"] == SUPPORTED for row in claims])
        rows.append([sample, *scores, supported, _counts(hoped), _both(_first(found["scores"], wanted))])
        verdicts += [[sample, claim["verdict"] or "not judged", claim["text"]] for claim in claims]
    page = page_of(sys.stdout)
    heads = ["sample", "icat", "s_fact", "expected", "claims", "expected", "aspects"]
    title = "result and human expectation (claims supported / not, aspects covered / not)"
    return [title, *table(heads, rows, page), "", *table(["sample", "verdict", "claim"], verdicts, page, names=3)]


# By metric: the file of what is expected, the tables that are read for it, and what gives the lines
_EXPECTED: Mapping[str, tuple[str, Sequence[str], Callable[[Sequence[Mapping[str, Any]], _Found], list[str]]]] = {
    "e2e": ("expected.jsonl", ("scores",), _beside_coverage),
    "icat": ("expected_claims.jsonl", ("scores", "measures", "claims"), _beside_claims),
}


def _first(rows: Mapping[str, Sequence[Mapping[str, Any]]], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first row of a sample; an empty one where there is none."""
    return next(iter(rows.get(wanted["sample_id"], ())), {})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _both(score: Mapping[str, Any]) -> str:
    """What of a score is covered, and what is not."""
    return "-" if score.get("covered") is None else f"{score['covered']} / {score['uncovered']}"


def _counts(held: Sequence[bool]) -> str:
    return f"{sum(held)} / {len(held) - sum(held)}"
