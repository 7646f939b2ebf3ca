"""What a plan takes on so many machines: hours, files, bytes and requests to the store, by rates that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from untold.jobs.asking.calling import address_of
from untold.jobs.settings.model import Settings
from untold.udfs.llm.segments import JOURNALED_BYTES
from untold.udfs.llm.units import UNIT_ROWS

# Of a million samples of e2e on two cores, model server included, while it asked (docs/explanation/measured.md,
# "Throughput")
CALLS_PER_SECOND_AND_CORE = 737 / 2
# MiniLM, chunks of 256 tokens (docs/explanation/measured.md, "Indexes")
EMBEDDED_TEXTS_PER_SECOND_AND_CORE = 16.8
# Six layers of 384, in fp32 (docs/explanation/measured.md, "Cheaper relations")
CLASSIFIED_PAIRS_PER_SECOND_AND_CORE = 138.0
# Of a completion's row beside its text: id, times, counts (`Completion.size`)
ROW_BYTES = 264
# Of a token of English, as `Script.tokens_of` takes it
TOKEN_BYTES = 4
# A row of a file is written once; a start reads its footer and its columns
REQUESTS_OF_A_FILE = 3
HOUR = 3600.0


def cluster_of(machines: int, cores: int, settings: Settings) -> Cluster:
    """So many machines, under the settings of a run."""
    in_tasks = {}
    if settings.embeddings.base_url is None:
        in_tasks["embed_text"] = EMBEDDED_TEXTS_PER_SECOND_AND_CORE
    if settings.nli.classifier_gpus is None and address_of(settings, "classifier") is None:
        in_tasks["classify_entailment"] = CLASSIFIED_PAIRS_PER_SECOND_AND_CORE
    return Cluster(machines, cores, in_tasks)


@dataclass(frozen=True)
class Cluster:
    """Machines that all do the same work; requests a second and core of stages that a model answers within tasks."""

    machines: int
    cores: int
    in_tasks: Mapping[str, float] = field(default_factory=dict)

    def takes(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Further columns of a row of a plan, of the requests that are expected.

        cluster_hours: by limits or by the speed of these machines, whichever is slower; files and bytes of completions
        before compaction; store_requests: to write and read them; machines: how many are worth having, None without a
        limit, for then each one more is.
        """
        requests = row["expected_requests"]
        # Those of the limits are of as many requests as are possible
        asked = row["requests"] - row["reused"]
        limited = None if row["hours"] is None or not asked else row["hours"] * requests / asked
        alone = requests / self._rate(row["stage"]) / self.cores / HOUR
        size = requests * ROW_BYTES + row["expected_completion_tokens"] * TOKEN_BYTES
        files = -(-requests // UNIT_ROWS) + -(-size // JOURNALED_BYTES) if requests else 0
        return {
            "cluster_hours": max(limited or 0.0, alone / self.machines),
            "files": files,
            "bytes": size,
            "store_requests": files * REQUESTS_OF_A_FILE,
            "machines": None if not limited else max(1, -int(-alone // limited)),
        }

    def _rate(self, stage: str) -> float:
        """Requests a second and core, where the endpoint answers at once."""
        return self.in_tasks.get(stage, CALLS_PER_SECOND_AND_CORE)
