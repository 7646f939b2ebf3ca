"""Pack this environment for the machines of a cluster: our wheel, an archive that workers unpack, and JVM packages."""

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
# Executors unpack the archive into this folder
UNPACKED = "environment"
# The folders of the package that are next to `untold` in an editable installation
PARTS = ("jobs", "udfs", "graph", "conf")
TAG = "py3-none-any"


class PackageError(UserError):
    """An environment cannot be packed. The message has the reason and the remedy."""


def package(output: str, settings: Settings, *, jars: bool) -> str:
    """Write the wheel, the environment and, with `jars`, the JVM packages. Return their settings as YAML.

    Only packages that Spark has not resolved before need a network. Raises PackageError, and UserError without
    venv-pack.
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
    """Write a wheel of this package, which may be an editable installation. No build tool is needed."""
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
    """Write the environment of this Python as an archive for machines with the same Python at the same path.

    conda-pack packs a conda environment, and venv-pack any other. Raises PackageError if they fail.
    """
    edited = sorted({known.name for known in distributions() if _is_edited(known)})
    if edited:
        raise PackageError(
            f"{', '.join(edited)}: an editable installation cannot be packed. Create a new environment (python -m venv "
            f"ENV && ENV/bin/pip install '{wheel}[engine,package]'), and run ENV/bin/untold package"
        )
    packer = "conda_pack" if _is_conda() else "venv_pack"
    require("untold package", "package", packer)
    # -I ignores modules in the working directory
    start = [sys.executable, "-I", "-m", packer, "--prefix", sys.prefix, "--output", str(archive)]
    options = ["--force", "--quiet", "--compress-level", "1"]
    ended = subprocess.run([*start, *options], capture_output=True, text=True, check=False)
    if ended.returncode:
        reason = " ".join((ended.stderr or ended.stdout).split())
        raise PackageError(f"{packer.replace('_', '-')} cannot pack {sys.prefix}: {reason}")
    # Executors may run as another user
    archive.chmod(0o644)


def copy_jars(folder: Path, settings: Settings) -> list[str]:
    """Copy the jars of the packages in the settings, which Spark resolves, and return their URIs."""
    from untold.jobs.run.session import open_session

    spark = open_session(settings)
    named = spark.sparkContext.getConf().get("spark.jars") or ""
    folder.mkdir(exist_ok=True)
    jars = [unquote(urlparse(jar).path) for jar in named.split(",") if jar]
    return [Path(shutil.copy(jar, folder)).as_uri() for jar in jars]


def show_package(output: str, text: str) -> None:
    """Print the settings that use a package."""
    print(text, end="")
    print(f"# in {os.path.join(output, 'cluster.yaml')}: use it with --config. All machines must see these paths")


def _is_conda() -> bool:
    return os.path.isdir(f"{sys.prefix}/conda-meta")


def _python_of_ray() -> dict[str, Any]:
    """Return Ray's settings for the Python of the archive. Ray unpacks no links, such as the Python of a venv."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if _is_conda():
        return {"py_executable": f"./bin/{version}"}
    base = os.path.realpath(sys.executable)
    return {"py_executable": base, "env_vars": {"PYTHONPATH": f"./lib/{version}/site-packages"}}


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of the package with their names in a wheel."""
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
    """Return True for an editable installation of a package."""
    origin = json.loads(known.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))
