"""Compare the metric rag with RAGChecker's package on one model server: calls, seconds and equal measures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import Figure, Options
from tests.benchmarks.running import ROOT, run_command
from tests.benchmarks.samples import write_rows
from tests.fakes.claims import claims_of
from tests.fakes.expected_rag import rag_samples
from tests.fakes.facts import normalise
from tests.fakes.model_server import ModelServer
from tests.runs.harness import PROMPTS, read_table
from untold.udfs.facts.rag_measures import PUBLISHED

WORLDS, RESPONSES = 200, 2
LATENCY, IN_FLIGHT = 0.2, 128
PACKAGES = ("ragchecker==0.1.9", "refchecker==0.2.17")
# The requirements that are imported for claim checks by a language model. The others are torch and similar packages
NEEDED = ("litellm>=1.49,<2", "spacy>=3.7,<4", "loguru>=0.7,<0.8", "dataclasses-json>=0.6,<0.7")
Row = dict[str, Any]


def measure(options: Options) -> list[Figure]:
    """Run both over the same samples. Print a line and return no figure if the package cannot be installed.

    Raises RuntimeError if a measure of a sample differs.
    """
    samples = comparable(rag_samples(options.requests or WORLDS, RESPONSES))
    with TemporaryDirectory(prefix="untold-") as name, ModelServer(answer="world_closed", latency=LATENCY) as server:
        folder = Path(name)
        python = install(folder / "environment")
        if python is None:
            return []
        theirs, loop = run_theirs(python, folder, server, samples)
        calls = server.count()
        server.reset()
        ours = run_ours(folder, server, samples)
        own, at = server.count(), [one.at for one in server.arrivals()]
    differing = [name for name, one in theirs.items() if one != ours[name]]
    if differing:
        raise RuntimeError(f"{len(differing)} of {len(theirs)} samples have other measures, first {differing[0]}")
    asking = max(at) - min(at) + LATENCY
    return [
        Figure("samples with equal measures", (len(theirs),)),
        Figure("ragchecker: calls", (calls,), "calls"),
        Figure("rag: calls", (own,), "calls"),
        Figure("rag / ragchecker: calls", (own / calls,), at_most=1.0),
        Figure("ragchecker: seconds of its evaluation", (loop,), "s"),
        Figure("rag: seconds from the first call to the last answer", (asking,), "s"),
    ]


def comparable(samples: Sequence[Row]) -> list[Row]:
    """Return samples with contexts and distinct claims on both sides. Others are 0 there, and undefined here."""
    return [
        sample
        for sample in samples
        if sample["contexts"] and isinstance(sample["ground_truth"], str) and all(map(_is_distinct, _texts(sample)))
    ]


def _texts(sample: Row) -> tuple[str, str]:
    return sample["response"], sample["ground_truth"]


def _is_distinct(text: str) -> bool:
    claims = [normalise(claim) for claim in claims_of(text)]
    return bool(claims) and len({*claims}) == len(claims)


def install(folder: Path) -> Path | None:
    """Return the interpreter of a new environment with the package, or print a line and return None."""
    python = folder / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    pip = (*uv, "pip", "install", "--quiet", "--python", str(python))
    for command in ((*uv, "venv", "--quiet", str(folder)), (*pip, "--no-deps", *PACKAGES), (*pip, *NEEDED)):
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            print(f"ragchecker: skipped, {PACKAGES[0]} cannot be installed", file=sys.stderr)
            return None
    return python


def run_theirs(
    python: Path, folder: Path, server: ModelServer, samples: Sequence[Row]
) -> tuple[dict[str, Mapping[str, float]], float]:
    """Return RAGChecker's rounded measures by sample, and the seconds of its evaluation."""
    results = [
        {
            "query_id": sample["sample_id"],
            "query": sample["query"],
            "gt_answer": sample["ground_truth"],
            "response": sample["response"],
            "retrieved_context": [
                {"doc_id": str(place), "text": one if isinstance(one, str) else one["text"]}
                for place, one in enumerate(sample["contexts"])
            ],
        }
        for sample in samples
    ]
    inputs, outputs, log = (folder / name for name in ("inputs.json", "outputs.json", "loop.log"))
    inputs.write_text(json.dumps({"results": results}), encoding="utf-8")
    loop = ROOT / "tests" / "benchmarks" / "ragchecker_loop.py"
    # Without the folder of the script in the module path, because this module has the name of the package
    words = (str(python), "-P", str(loop), str(inputs), str(outputs), server.base_url, str(IN_FLIGHT))
    run_command(words, folder, log, watch=False)
    found = json.loads(outputs.read_text(encoding="utf-8"))["results"]
    seconds = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])["seconds"]
    return {one["query_id"]: _rounded(one["metrics"]) for one in found}, seconds


def run_ours(folder: Path, server: ModelServer, samples: Sequence[Row]) -> dict[str, Mapping[str, float]]:
    """Return the same measures of a whole job by sample. An undefined measure is 0."""
    path = write_rows(folder / "samples.jsonl", samples)
    command = [sys.executable, "-m", "untold", "score", "--input", str(path), "--metric", "rag"]
    settings = {
        "llm.model": "fake-model",
        "llm.base_url": server.base_url,
        "llm.max_concurrency": IN_FLIGHT,
        "prompts_dir": PROMPTS,
    }
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    run_command([*command, "--output", str(folder / "out")], folder, folder / "log", watch=False)
    found: dict[str, dict[str, float]] = {}
    for row in read_table(folder / "out", "measures"):
        if row["measure"] in PUBLISHED:
            found.setdefault(row["sample_id"], {})[row["measure"]] = row["value"] or 0.0
    return {name: _rounded(one) for name, one in found.items()}


def _rounded(measures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(measures[name]), 12) for name in PUBLISHED}
