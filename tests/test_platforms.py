"""Install the extra `platform` next to the Spark of a platform: pip keeps this Spark, and Untold reports it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.fakes import absent

ROOT = Path(__file__).resolve().parent.parent
PLATFORM, NEWER = "4.0.7", "4.3.0"
# Without the variables of the user, such as PYTHONPATH
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
pytestmark = pytest.mark.gate


def write_wheel(folder: Path, name: str, version: str, modules: dict[str, str] | None = None) -> Path:
    """Write a wheel without requirements that replaces a package of the index."""
    plain = name.replace("-", "_").lower()
    info = f"{plain}-{version}.dist-info"
    files = {f"{module}/__init__.py": text for module, text in (modules or {}).items()}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    path = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(place, text)
    return path


def lowest(requirement: Requirement) -> str:
    """Return the lowest version of a requirement."""
    return min(one.version for one in requirement.specifier if one.operator in (">=", "=="))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel of Untold, a newer PySpark, and an empty wheel for each other requirement."""
    folder = tmp_path_factory.mktemp("index")
    build = [sys.executable, "-m", "uv", "--quiet", "build", "--wheel", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("untold-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    for requirement in map(Requirement, lines):
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": "platform"})
        if wanted and requirement.name != "pyspark":
            write_wheel(folder, requirement.name, lowest(requirement))
    write_wheel(folder, "pyspark", NEWER, {"pyspark": f"__version__ = {NEWER!r}\n"})
    return folder


class Machine:
    """An environment with a PySpark of its platform, which is a module with a version and without Spark."""

    def __init__(self, folder: Path, *, metadata: bool) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python = folder / "venv" / "bin" / "python"
        (self._packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        module = {"pyspark": f"__version__ = {PLATFORM!r}\n"}
        if metadata:
            self.pip("install", str(write_wheel(folder, "pyspark", PLATFORM, module)))
            self.spark = self._packages / "pyspark"
        else:
            # As `/databricks/spark/python` and `/usr/lib/spark/python` are on Python's path
            self.spark = folder / "spark" / "python" / "pyspark"
            self.spark.mkdir(parents=True)
            (self.spark / "__init__.py").write_text(module["pyspark"], encoding="utf-8")
            (self._packages / "platform.pth").write_text(f"{self.spark.parent}\n", encoding="utf-8")

    def pip(self, *words: str) -> str:
        """Run pip without a network, and return its output."""
        line = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.python), *words]
        return subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout

    def install(self, index: Path, extra: str) -> str:
        """Install Untold with an extra, and return the output of pip. It resolves all requirements."""
        return self.pip("install", "--no-compile", "--no-index", "--find-links", str(index), f"untold[{extra}]")

    def doctor(self) -> str:
        """Return the output of `untold doctor`, with the libraries of this process except Ray."""
        paths = [path for path in sys.path if path.endswith("site-packages")]
        (self._packages / "zz.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
        line = [str(self.python), "-P", absent.__file__, "ray", "untold", "doctor"]
        return subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(params=[True, False], ids=["metadata", "path"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, metadata=request.param)


def test_pip_leaves_the_spark_of_a_platform_and_untold_reports_it(machine: Machine, index: Path) -> None:
    said = machine.install(index, "platform")
    assert "untold-" in said
    assert f"pyspark-{NEWER}" not in said
    line = [str(machine.python), "-I", "-c", "import pyspark; print(pyspark.__version__, pyspark.__path__[0])"]
    found = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
    assert found == [PLATFORM, str(machine.spark)]
    machine.pip("check")
    told = machine.doctor()
    assert f"Spark {PLATFORM}" in told
    assert str(machine.spark) in told
    assert "ray: pip install 'untold[platform]'" in told


def test_the_engine_would_replace_a_spark_without_metadata(index: Path, tmp_path: Path) -> None:
    machine = Machine(tmp_path, metadata=False)
    assert f"pyspark-{NEWER}" in machine.install(index, "engine")
