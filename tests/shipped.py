"""Makes the outputs that ship with the package, in `conf/demo`: `python -m tests.shipped`.

They are what `untold score` and `untold meta-evaluate` wrote, with the judge of `tests.fakes.scripted` in place of a
model. What depends on the machine is left out of the manifests, and tables without rows are left out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.fakes.model_server import ModelServer
from tests.fakes.scripted import Topic, topics
from tests.runs.harness import PROMPTS

DEMO = Path(__file__).resolve().parents[1] / "conf" / "demo"
METRICS = "e2e,qa,nli"
NIGHTS = [f"2026-11-{day}" for day in range(16, 21)]
# The night on which the responses of `large` are cut short
BROKEN = NIGHTS[3]
# The judgement of one response fails, so that there is a failure
FAILS = [{"when": {"stage": "evaluate_coverage", "contains": "about 21 million inhabitants"}, "do": "garbage"}]
PRICES = {"prompt": 0.4, "completion": 1.6}
# Settings that contain the location of a run
ELSEWHERE = ("work_dir", "completion_store", "storage", "spark", "ray", "prompts_dir")
MADE_BY = "tests/shipped.py, with a scripted judge in place of a model"


def samples(night: str | None = None) -> list[dict[str, Any]]:
    """Return one row per topic and system. With a night, the rows are the responses of the night."""
    return [
        {
            "sample_id": f"{number:02}-{system}",
            "query": topic.query,
            "response": topic.answer(parts if night is None else of_night(topic, system, night)),
            "contexts": topic.context_rows(),
            "system": system,
        }
        for number, topic in enumerate(topics(), 1)
        for system, parts in topic.says.items()
    ]


def of_night(topic: Topic, system: str, night: str) -> Sequence[int | str]:
    """Return the parts of the response of a system on a night. `medium` improves, and `large` is cut short once."""
    parts = topic.says[system]
    if (system, night) == ("large", BROKEN):
        return parts[:1]
    if system != "medium":
        return parts
    learned = NIGHTS.index(night) >= len(topic.query) % len(NIGHTS)
    missing = [place for place, fact in enumerate(topic.facts) if fact["text"] and place not in parts]
    return [*parts, *missing[:1]] if learned else parts


def labelled() -> list[dict[str, Any]]:
    """Return rows in the format of WikiContradict: two contradicting contexts, and five answers with their labels."""
    return [_labelled(topic) for topic in topics() if topic.contradictory]


def _labelled(topic: Topic) -> dict[str, Any]:
    first, second = topic.contradictory[0]
    both, one, other = [first, second], [first], [second]
    answers = [topic.says["small"], one, other, both, ["Sources differ."]]
    # A generous reader accepts one of two views as an answer to some of the queries
    generous = len(topic.query) % 3 == 0
    labels = ["Partially correct", "Correct", "Correct", "Correct", "Incorrect"]
    labels[0] = "Correct" if generous else "Partially correct"
    return {
        "question": topic.query,
        "model": "scripted-answers",
        "context1_self_contained": topic.facts[first]["text"],
        "context2_self_contained": topic.facts[second]["text"],
        **{f"answer{number}": topic.answer(parts) for number, parts in enumerate(answers)},
        **{f"label{number}": label for number, label in enumerate(labels)},
    }


def make_results(folder: Path) -> None:
    """Run all metrics on all topics. The judgement of one response fails."""
    with ModelServer(answer="scripted", rules=FAILS) as server:
        ask(server, write(folder / "samples.jsonl", samples()), folder / "results", "--metric", METRICS)
    ship(folder / "results", DEMO / "results", keep_store=True)


def make_nightly(folder: Path) -> None:
    """Score the responses of each night with one store."""
    for night in NIGHTS:
        path = write(folder / f"{night}.jsonl", samples(night))
        with ModelServer(answer="scripted", rules=FAILS) as server:
            ask(server, path, folder / night, "--metric", "e2e", store=folder / "store")
        ship(folder / night, DEMO / "nightly" / night)


def make_meta_evaluation(folder: Path) -> None:
    """Compare two judges with the labels by question."""
    study, scores = write(folder / "labelled.jsonl", labelled()), []
    for judge, answer in (("scripted-judge", "scripted"), ("hasty-judge", "hasty")):
        with ModelServer(answer=answer) as server:
            ask(server, study, folder / judge, "--metric", METRICS, "--format", "wikicontradict")
        scores.append(f"--scores={judge}={folder / judge}")
    words = ["meta-evaluate", "--dataset", "wikicontradict", "--input", study, *scores, "--cluster"]
    run([*words, "--output", folder / "meta_evaluation"])
    ship(folder / "meta_evaluation", DEMO / "meta_evaluation")


PARTS = {"results": make_results, "nightly": make_nightly, "meta_evaluation": make_meta_evaluation}


def main() -> None:
    """Create the named outputs again, or all of them."""
    for name in sys.argv[1:] or PARTS:
        with TemporaryDirectory(prefix="untold-shipped-") as folder:
            PARTS[name](Path(folder))


def ask(server: ModelServer, path: Path, output: Path, *how: str, store: Path | None = None) -> None:
    """Score samples with the scripted judge."""
    settings = {"llm.base_url": server.base_url, "llm.model": "scripted-judge", "prompts_dir": PROMPTS}
    settings |= {f"llm.price_per_million_{kind}_tokens": price for kind, price in PRICES.items()}
    settings |= {"summarise_contexts": "false", "fail_on_error": "none"} | (
        {} if store is None else {"completion_store": store}
    )
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run(["score", "--input", path, "--output", output, *how, *sets])


def run(words: Iterable[str | Path]) -> None:
    """Run `untold` in a separate process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UNTOLD_", "OPENAI_"))}
    subprocess.run([sys.executable, "-m", "untold", *map(str, words)], check=True, env=environment)


def write(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def ship(made: Path, kept: Path, *, keep_store: bool = False) -> None:
    """Copy an output with one file per table. The manifest is copied without the values of this machine."""
    shutil.rmtree(kept, ignore_errors=True)
    manifest = json.loads((made / "manifest.json").read_text(encoding="utf-8"))
    tables = sorted(folder.name for folder in made.iterdir() if folder.is_dir() and any(folder.glob("*.parquet")))
    for name in tables:
        rows = ds.dataset(sorted(map(str, (made / name).glob("[!._]*.parquet")))).to_table()
        if rows.num_rows or name == "failures":
            write_table(rows, kept / name)
    if keep_store:
        for stage in sorted((made / "completions" / "v1").iterdir()):
            rows = ds.dataset(sorted(map(str, stage.glob("[!._]*.parquet")))).to_table()
            write_table(rows, kept / "completions" / "v1" / stage.name)
    settings = manifest.get("settings", {})
    manifest |= {"settings": {key: value for key, value in settings.items() if key not in ELSEWHERE}}
    manifest |= {"made_by": MADE_BY}
    if "input" in manifest:
        manifest["input"] = manifest["input"] | {"path": Path(manifest["input"]["path"]).name}
    text = json.dumps(manifest, indent=1, ensure_ascii=False).replace(f"{PROMPTS.parents[2]}/", "")
    (kept / "manifest.json").write_text(text + "\n", encoding="utf-8")


def write_table(rows: pa.Table, folder: Path) -> None:
    """Write a table as one small file."""
    folder.mkdir(parents=True)
    pq.write_table(rows.replace_schema_metadata(None), folder / "part-0.parquet", compression="zstd")


if __name__ == "__main__":
    main()
