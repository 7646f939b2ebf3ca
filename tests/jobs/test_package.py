from __future__ import annotations

import csv
import zipfile
from io import StringIO
from pathlib import Path

import pytest

from untold.jobs import package
from untold.jobs.package import PackageError, pack_environment, write_wheel


def test_a_wheel_has_the_package_and_records_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path)) as wheel:
        names = set(wheel.namelist())
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        rows = {row[0]: row[1:] for row in csv.reader(StringIO(wheel.read(record).decode()))}
        sizes = {name: str(wheel.getinfo(name).file_size) for name in names}
    assert {"untold/__init__.py", "untold/jobs/package.py", "untold/conf/default.yaml", "untold/py.typed"} <= names
    assert rows.keys() == names
    assert all(rows[name][1] == sizes[name] for name in names - {record})


def test_an_environment_that_is_edited_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "_is_edited", lambda known: known.name == "pytest")
    with pytest.raises(PackageError, match=r"^pytest: an editable installation cannot be packed\. Create a"):
        pack_environment(tmp_path / "environment.tar.gz", tmp_path / "untold.whl")
