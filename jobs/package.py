"""Packs this environment for the machines of a cluster: our wheel, an archive that workers unpack, and JVM packages."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import yaml

import untold
from untold.jobs.settings.model import Settings
from untold.udfs.errors import UserError, require

ARCHIVE = "environment.tar.gz"
# The folder in which an executor unpacks the archive
UNPACKED = "environment"
# Parts of the package lie beside `untold` where it is installed to be edited
PARTS = ("jobs", "udfs", "graph", "conf")
TAG = "py3-none-any"


class PackageError(UserError):
    """An environment that cannot be packed. The message says why and what to do."""


def package(output: str, settings: Settings, *, jars: bool) -> str:
    """Writes the wheel, the environment and, with `jars`, the JVM packages; gives the settings that use them, as YAML.

    Needs no network, but for packages that Spark has not resolved before. Raises PackageError, and UserError where
    venv-pack is missing.
    """
    folder = Path(output).expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = write_wheel(folder)
    pack_environment(folder / ARCHIVE, wheel)
    place = (folder / ARCHIVE).as_uri()
    conf = {"spark.archives": f"{place}#{UNPACKED}", "spark.pyspark.python": f"./{UNPACKED}/bin/python"}
    if jars:
        conf["spark.jars"] = ",".join(copy_jars(folder / "jars", settings))
    ray = {"runtime_env": {"working_dir": place, **_python_of_ray()}}
    text = yaml.safe_dump({"spark": {"conf": conf}, "ray": ray}, sort_keys=False)
    (folder / "cluster.yaml").write_text(text, encoding="utf-8")
    return text


def write_wheel(folder: Path) -> Path:
    """Writes a wheel of this package as it is installed, from a wheel or to be edited; needs no build tool."""
    known = distribution("untold")
    wheel = folder / f"untold-{known.version}-{TAG}.whl"
    info = f"untold-{known.version}.dist-info"
    files = {name: path.read_bytes() for name, path in _own_files()}
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (known.read_text(name) or known.read_text("PKG-INFO") or "").encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: untold\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode()
    record = [f"{name},{_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def pack_environment(archive: Path, wheel: Path) -> None:
    """Writes this Python's environment as an archive that is unpacked and used wherever the same Python lies.

    By conda-pack in a conda environment, else by venv-pack. Raises PackageError for what these cannot pack.
    """
    edited = sorted({known.name for known in distributions() if _is_edited(known)})
    if edited:
        raise PackageError(
            f"{', '.join(edited)}: an editable installation cannot be packed. Create a new environment (python -m venv "
            f"ENV && ENV/bin/pip install '{wheel}[package]'), and run ENV/bin/untold package"
        )
    packer = "conda_pack" if _is_conda() else "venv_pack"
    require("untold package", "package", packer)
    # -I: modules of the folder that this was started in are nobody's
    start = [sys.executable, "-I", "-m", packer, "--prefix", sys.prefix, "--output", str(archive)]
    options = ["--force", "--quiet", "--compress-level", "1"]
    ended = subprocess.run([*start, *options], capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = " ".join((ended.stderr or ended.stdout).split())
        raise PackageError(f"{packer.replace('_', '-')} cannot pack {sys.prefix}: {reason}")
    # Executors may run as another user
    archive.chmod(0o644)


def copy_jars(folder: Path, settings: Settings) -> list[str]:
    """Copies the jars of the packages in the settings and gives where they lie; Spark resolves them."""
    from untold.jobs.run.session import open_session

    spark = open_session(settings)
    named = spark.sparkContext.getConf().get("spark.jars") or ""
    folder.mkdir(exist_ok=True)
    jars = [unquote(urlparse(jar).path) for jar in named.split(",") if jar]
    return [Path(shutil.copy(jar, folder)).as_uri() for jar in jars]


def show_package(output: str, text: str) -> None:
    """Prints the settings that use a package."""
    print(text, end="")
    print(f"# in {os.path.join(output, 'cluster.yaml')}: use it with --config. All machines must see these paths")


def _is_conda() -> bool:
    return os.path.isdir(f"{sys.prefix}/conda-meta")


def _python_of_ray() -> dict[str, Any]:
    """How Ray runs the Python of the archive, of whose links it unpacks none: a venv's Python is one."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if _is_conda():
        return {"py_executable": f"./bin/{version}"}
    base = os.path.realpath(sys.executable)
    return {"py_executable": base, "env_vars": {"PYTHONPATH": f"./lib/{version}/site-packages"}}


def _own_files() -> Iterator[tuple[str, Path]]:
    """The files of our package, by their names in a wheel."""
    top = Path(untold.__file__).parent
    roots = {"untold": top, **{f"untold/{part}": _folder_of(part) for part in PARTS}}
    for name, root in roots.items():
        for path in sorted(root.rglob("*")):
            parts = path.relative_to(root).parts
            if path.is_file() and path.suffix != ".pyc" and not (root == top and parts[0] in PARTS):
                yield f"{name}/{'/'.join(parts)}", path


def _folder_of(part: str) -> Path:
    module = __import__(f"untold.{part}", fromlist=["__path__"])
    return Path(next(iter(module.__path__)))


def _digest(content: bytes) -> str:
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"


def _is_edited(known: Distribution) -> bool:
    """Whether a package is used from where it is edited."""
    origin = json.loads(known.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))
