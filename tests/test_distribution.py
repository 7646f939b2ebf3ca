"""Test the installation of Untold: wheel, sdist and editable, without extras, and with the oldest versions."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
import ray

from tests.fakes.model_server import ModelServer
from tests.runs.cluster import SHARED_RAY
from tests.runs.harness import clean_environment, read_table, words_of, write_foreign_modules, write_samples
from tests.runs.standalone import Standalone

ROOT = Path(__file__).resolve().parent.parent
# This variable selects another interpreter for the installation
PYTHON = os.environ.get("UNTOLD_TEST_PYTHON", sys.executable)
LEFT_OUT = (".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")
SAMPLE = {"sample_id": "a", "query": "q", "response": "[C1] is so.", "contexts": ["It is so.", "It is not."]}
IMPORT_UNTOLD = """
import sys, untold
print(untold.__file__, *{"pyspark", "ray", "lancedb", "pyarrow"} & set(sys.modules))
"""
IMPORT_EVERYTHING = """
import importlib, pkgutil, untold.jobs, untold.graph, untold.udfs
for package in (untold.jobs, untold.graph, untold.udfs):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module.name.endswith("__main__") or importlib.import_module(module.name)
"""
# The modules that an install without extras can import, and the modules that it cannot import
OPEN_THE_DEMO = """
import untold
run = untold.open_run(untold.demo_output())
print(run.path_of("statements"), len(run.differences()))
"""
FIND_ENGINE = """
from importlib.util import find_spec
from untold.udfs.errors import ENGINE_MODULES
print([name for name in (*ENGINE_MODULES, "huggingface_hub") if find_spec(name)])
"""
MOST_MEGABYTES = 500
# Modules that import their libraries on first use
USE_LIBRARIES = """
from untold.udfs.facts.claim_verdicts import cut_passages
from untold.udfs.quantities import compare_quantities
from untold.udfs.samples.labelled import surface_scores
print(*cut_passages("Dr. Mill left. She came.", 3), sep="|")
print(compare_quantities("14,800 km", "8,000 nmi").outcome, surface_scores("a b", "a b")["rouge1"])
"""
# A Ray that listens only on loopback, in a Python without untold (see untold.jobs.inference.backends.actor_pool)
A_HEAD = """
import os, sys
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
import ray
ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
ray.init("local", num_cpus=1, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.slow


class Environment:
    """A separate virtual environment. Its processes start in a folder of modules that raise an error."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.foreign = folder, write_foreign_modules(folder / "foreign")
        uv("venv", "--python", PYTHON, str(folder / "venv"))
        self.python = folder / "venv" / "bin" / "python"

    def install(self, *words: str) -> None:
        """Install packages with uv and the given arguments."""
        uv("pip", "install", "--python", str(self.python), *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the given arguments."""
        environment = {**clean_environment(), "PYTHONPATH": str(self.foreign)}
        line = [str(self.python), *words]
        return subprocess.run(line, cwd=self.foreign, env=environment, capture_output=True, text=True, check=False)

    def output(self, *words: str) -> str:
        """Return the output of Python with the given arguments. An error fails the test."""
        ended = self.run(*words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def megabytes(self) -> float:
        """Return the size of the installed packages on the disk, including the bytecode that pip writes."""
        self.output("-I", "-m", "compileall", "-q", "-j", "0", str(self.folder / "venv" / "lib"))
        used = subprocess.run(["du", "-s", "-B", "1", self.folder / "venv" / "lib"], capture_output=True, check=True)
        return int(used.stdout.split()[0]) / 1e6

    def score(self) -> list[dict[str, Any]]:
        """Return the scores of one sample with a model server on this machine."""
        samples, output = write_samples(self.folder / "samples.jsonl", [SAMPLE]), self.folder / "out"
        with ModelServer() as server:
            self.output("-m", "untold", *words_of(server, samples, output))
        return read_table(output, "scores")


def uv(*words: str) -> None:
    """Run uv and show its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    line = [sys.executable, "-m", "uv", "--quiet", *words]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the source without build files."""
    ignored = shutil.ignore_patterns(*LEFT_OUT)
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "untold", symlinks=True, ignore=ignored))


@pytest.fixture(scope="module")
def built(source: Path) -> dict[str, Sequence[str]]:
    """Return the arguments of each kind of install. The wheel is built from the sdist."""
    uv("build", "--out-dir", str(source.parent / "dist"), str(source))
    (wheel,) = (source.parent / "dist").glob("*.whl")
    (sdist,) = (source.parent / "dist").glob("*.tar.gz")
    return {"wheel": (str(wheel),), "sdist": (str(sdist),), "editable": ("--editable", str(source))}


@pytest.mark.parametrize("kind", ["wheel", "sdist", "editable"])
def test_a_base_install_works_next_to_broken_modules(
    built: dict[str, Sequence[str]], tmp_path: Path, kind: str
) -> None:
    environment = Environment(tmp_path)
    environment.install(*built[kind])
    (place,) = environment.output("-c", IMPORT_UNTOLD).split()
    assert not Path(place).is_relative_to(ROOT)
    assert "\nscores\n" in f"\n{environment.output('-m', 'untold', 'schema')}"
    assert "results/statements" in environment.output("-I", "-c", OPEN_THE_DEMO)
    assert environment.output("-I", "-c", FIND_ENGINE) == "[]\n"
    assert environment.megabytes() <= MOST_MEGABYTES
    refused = environment.run("-m", "untold", "score", "--input", "in", "--output", "out", "--metric", "nli")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"untold: score needs [\w, -]*: pip install 'untold\[engine\]'\n", refused.stderr)
    if kind == "wheel":
        environment.install(*with_extra(built[kind], "engine"))
        refused = environment.run("-m", "untold", "sweep", "out")
        assert refused.stderr == "untold: sweep needs matplotlib, networkx: pip install 'untold[study]'\n"
        assert [row["status"] for row in environment.score()] == ["ok"]
        assert "sample a, metric e2e" in environment.output(
            "-m", "untold", "show", str(tmp_path / "out"), "--sample", "a"
        )


def with_extra(words: Sequence[str], extra: str) -> list[str]:
    """Return the words of an installation with an extra."""
    return [*words[:-1], f"{words[-1]}[{extra}]"]


def test_the_oldest_versions_work(built: dict[str, Sequence[str]], tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    environment.install(
        "--resolution", "lowest-direct", f"{built['wheel'][0]}[engine,study,notebook,connect,lakehouse]"
    )
    environment.output("-I", "-c", IMPORT_EVERYTHING)  # isolated, because some modules import json
    assert environment.output("-I", "-c", USE_LIBRARIES) == "Dr. Mill left.|She came.\nequal 1.0\n"
    assert [row["status"] for row in environment.score()] == ["ok"]


def test_a_package_runs_on_machines_with_python_only(built: dict[str, Sequence[str]], tmp_path: Path) -> None:
    environment, node = Environment(tmp_path / "own"), Environment(tmp_path / "node")
    versions = (f"pyspark=={pyspark.__version__}", f"ray=={ray.__version__}")
    environment.install(f"{built['wheel'][0]}[engine,package]", *versions)
    node.install(f"ray=={ray.__version__}")
    told = environment.output("-m", "untold", "package", "--output", str(tmp_path / "package"))
    assert "spark.archives" in told
    (wheel,) = (tmp_path / "package").glob("*.whl")
    assert names_in(wheel) == names_in(Path(built["wheel"][0]))
    # The worker without access to the folder is not used in this test
    (tmp_path / "hidden").mkdir()
    standalone = Standalone(tmp_path, tmp_path / "hidden", free_port())
    head = subprocess.Popen(
        [str(node.python), "-c", A_HEAD], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert head.stdout is not None
        settings = {**standalone.settings, "ray.address": head.stdout.readline().strip()}
        samples, output = write_samples(tmp_path / "samples.jsonl", [SAMPLE]), tmp_path / "out"
        given = ("--config", str(tmp_path / "package" / "cluster.yaml"))
        variables = {**clean_environment(), **standalone.environment, **SHARED_RAY}
        with ModelServer() as server:
            words = words_of(server, samples, output, *given, settings=settings)
            line = [str(environment.python), "-m", "untold", *words]
            ended = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert [row["status"] for row in read_table(output, "scores")] == ["ok"]
    finally:
        head.communicate()
        standalone.close()


def names_in(wheel: Path) -> set[str]:
    """Return the modules and files of the package in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("untold/")}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
