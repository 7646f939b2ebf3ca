"""Test the directions of imports between the parts of the project. Imports in functions count too."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import networkx as nx
import pyarrow.parquet as pq
import pytest

from untold.jobs.cli.commands import COMMANDS
from untold.udfs.errors import ENGINE, ENGINE_MODULES

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("jobs", "udfs", "graph", "conf")
# A part can import parts of a higher number, and parts of its own number without a circle
RANKS = {
    "untold.jobs.cli": 0,
    "untold.jobs.api": 0,
    "untold.jobs.run_analysis": 0,
    "untold.jobs.study": 2,
    # Loaded with the settings
    "untold.jobs.metrics.settings": 4,
    "untold.jobs.run": 3,
    "untold.jobs.inference": 3,
    "untold.jobs.metrics": 3,
    "untold.jobs.summary": 3,
    "untold.jobs.inputs": 3,
    "untold.jobs.lakehouse": 3,
    "untold.jobs.retrieval": 3,
    "untold.jobs.settings": 4,
    "untold.jobs.tables": 4,
    "untold.jobs.study_tables": 4,
    "untold.jobs.run_tables": 4,
    "untold.jobs.report": 2,
    "untold.jobs.analysis": 3,
    "untold.jobs.plots": 2,
}
COMMAND = 1  # all other modules of jobs, which users start
# The command line imports the jobs in functions, when a command needs them
LAZY = "untold.jobs.cli"
# Its records declare the options, and it imports no other module
LIGHT = "untold.jobs.inputs.options"
# Modules that run in actors, or start actors, have no process with Spark
WITHOUT_SPARK = (
    "untold.udfs.llm",
    *(f"untold.jobs.inference.{name}" for name in ("backends.actor_driver", "backends.job", "store.compaction")),
)


def modules() -> dict[str, Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "untold").glob("*.py")
    return {module_of(file): file for file in files}


def module_of(file: Path) -> str:
    parts = [part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
    return ".".join(parts if parts[0] == "untold" else ["untold", *parts])


MODULES = modules()


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that code imports. Modules of the project have their full names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in MODULES else str(node.module)


class AtRunTime(ast.NodeTransformer):
    """Remove imports that are only for types."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


def edges(*, for_types: bool) -> Iterator[tuple[str, str]]:
    for name, file in MODULES.items():
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for imported in imports_of(tree if for_types else AtRunTime().visit(tree)):
            yield name, imported


EDGES = sorted(set(edges(for_types=True)))
OURS = [(name, imported) for name, imported in EDGES if imported in MODULES]


def within(name: str, parts: str | Iterable[str]) -> bool:
    wanted = [parts] if isinstance(parts, str) else parts
    return any(name == part or name.startswith(f"{part}.") for part in wanted)


def under(folders: Iterable[str]) -> list[str]:
    return [f"untold.{folder}" for folder in folders]


def rank(name: str) -> int:
    return next((number for part, number in RANKS.items() if within(name, part)), COMMAND)


def is_command(name: str) -> bool:
    return within(name, "untold.jobs") and name != "untold.jobs" and rank(name) == COMMAND


@pytest.mark.parametrize(
    ("importing", "imported"), [("udfs", ("jobs", "graph")), ("graph", ("jobs", "udfs")), ("conf", FOLDERS[:3])]
)
def test_packages_import_one_way(importing: str, imported: tuple[str, ...]) -> None:
    assert [pair for pair in OURS if within(pair[0], f"untold.{importing}") and within(pair[1], under(imported))] == []


def test_within_jobs_imports_point_down() -> None:
    jobs = [pair for pair in OURS if all(within(name, "untold.jobs") and name != "untold.jobs" for name in pair)]
    assert [pair for pair in jobs if rank(pair[0]) > rank(pair[1])] == []


# meta_evaluate scores each model, nightly each date and calibrate each form by the main job, as a person would.
# compare scores the two runs of an estimate, and plans how many samples a budget pays for
PARTS_OF_OTHERS = {
    *((f"untold.jobs.{name}", "untold.jobs.score") for name in ("meta_evaluate", "nightly", "calibrate", "compare")),
    ("untold.jobs.compare", "untold.jobs.plan"),
}


def test_a_command_imports_no_other() -> None:
    assert {pair for pair in OURS if all(map(is_command, pair))} == PARTS_OF_OTHERS


def test_there_is_no_import_cycle() -> None:
    circles = [sorted(part) for part in nx.strongly_connected_components(nx.DiGraph(OURS)) if len(part) > 1]
    assert circles == []


def test_only_the_command_line_reaches_up_lazily() -> None:
    """Modules of the command line import jobs only in functions, so that a command loads only the modules it needs."""
    for name, file in MODULES.items():
        if within(name, LAZY):
            top = ast.Module([node for node in ast.parse(file.read_text("utf-8")).body if is_import(node)], [])
            ours = [one for one in imports_of(top) if one in MODULES]
            assert [one for one in ours if not within(one, (LAZY, LIGHT, "untold.udfs"))] == []


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_actors_import_no_spark() -> None:
    graph = nx.DiGraph(edges(for_types=False))
    for name in MODULES:
        if within(name, WITHOUT_SPARK) and name in graph:
            reached = {name, *nx.descendants(graph, name)}
            parents = {".".join(one.split(".")[:size]) for one in reached for size in range(1, one.count(".") + 1)}
            # `untold` imports the modules of its names at their first use
            parents = (parents & set(graph)) - {"untold"}
            reached |= {more for one in parents for more in nx.descendants(graph, one)}
            assert [one for one in reached if within(one, "pyspark")] == [], name


# The libraries of extras, and the modules that work without them
EXTRAS = (
    *("matplotlib", "networkx", "nltk", "openpyxl", "rouge_score", "sacrebleu", "grpc", "xllamacpp"),
    *("deltalake", "pyiceberg", "openlineage"),
)
STARTED = (
    *("api", "compare", "condense", "demo", "doctor", "export", "generate", "index", "inspect", "plan", "score"),
    "show",
)
PARTS = ("untold.jobs.answer", "untold.jobs.cli", "untold.jobs.metrics", "untold.udfs.statistics", "untold.udfs.stages")


def test_a_base_install_imports_the_modules_that_it_runs() -> None:
    names = [*(f"untold.jobs.{name}" for name in STARTED), *(name for name in MODULES if within(name, PARTS))]
    # None marks a module as not installed
    program = f"import sys, importlib; sys.modules.update(dict.fromkeys({EXTRAS}))\n"
    program += f"for name in {names}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_only_modules_that_make_calls_load_the_client_packages() -> None:
    """The import takes a second in each process of a start, and only one process calls an endpoint."""
    names = [f"untold.jobs.{name}" for name in ("score", "plan", "inference.backends.actor_driver")]
    program = f"import sys, importlib\nfor name in {names}: importlib.import_module(name)\n"
    subprocess.run([sys.executable, "-c", f"{program}sys.exit('openai' in sys.modules)"], check=True)


# Commands over the shipped outputs, which an install without the engine runs. DEMO and OUT are folders
READING = """
open --demo
show DEMO/results
show DEMO/results --sample 01-large
show DEMO/results --sample 01-large --picture OUT/graph.svg
report DEMO/results DEMO/meta_evaluation --html OUT/report.html
compare DEMO/results --all
export DEMO/results --to csv
export DEMO/results --to xlsx --output OUT/scores.xlsx
trend DEMO/nightly --output OUT/trend
estimate DEMO/results --labels OUT/labels.csv
estimate DEMO/results --proxy words --metric nli --input OUT/samples.jsonl
sample-size DEMO/results --half-width 0.1
inspect DEMO/samples.jsonl
schema
schema scores
prompts
prompts extract_atoms
completion bash
doctor
"""
HIDDEN = (*ENGINE_MODULES, "py4j", "huggingface_hub", "ruptures")
READ = f"""
import json, sys
from tests.fakes.absent import hide
hide({HIDDEN})
from untold.jobs.cli import main
for words in json.loads(sys.argv[1]):
    print(*words, file=sys.stderr)
    assert main(words) == 0, words
import untold
run = untold.open_run(untold.demo_output())
run.summary(), run.differences(), run.left_out(), run.agreement(), run.sample("01-large"), run._repr_html_()
assert not set({HIDDEN}) & set(sys.modules)
"""


def test_commands_that_read_import_no_engine(tmp_path: Path) -> None:
    demo = ROOT / "conf" / "demo"
    rows = pq.read_table(demo / "results" / "scores").to_pylist()
    ids = dict.fromkeys(row["sample_id"] for row in rows)
    (tmp_path / "labels.csv").write_text("sample_id,score\n" + "".join(f"{name},0.5\n" for name in [*ids][:9]))
    samples = pq.read_table(demo / "results" / "samples").to_pylist()
    (tmp_path / "samples.jsonl").write_text("".join(f"{json.dumps(row, default=str)}\n" for row in samples))
    text = READING.strip().replace("DEMO", str(demo)).replace("OUT", str(tmp_path))
    line = [sys.executable, "-c", READ, json.dumps([command.split() for command in text.splitlines()])]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_all_commands_either_read_or_need_the_engine() -> None:
    reading = {command.split()[0] for command in READING.strip().splitlines()}
    assert {name for name, command in COMMANDS.items() if ENGINE not in command.needs} == reading
