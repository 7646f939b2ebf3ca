"""Test that a run names unsuitable machines before it spends money: a missing folder or a wrong version."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from tests.jobs.executions import counted_executions
from untold.jobs.inference.backends import backends
from untold.jobs.inference.backends.actor_pool import start_ray
from untold.jobs.inference.backends.backends import ClusterChecks
from untold.jobs.inference.backends.node_checks import NodeCheckError, compare_versions, probing
from untold.udfs.node_report import NodeReport, silent, versions, visit, within

OWN = {"python": "3.11.7", "untold": "0.1.0", "pyspark": "4.0.1", "numpy": "2.1"}


def report(machine: str, **other: str) -> NodeReport:
    return {**silent(machine, ""), "versions": OWN | other}


def visited(tmp_path: Path, folder: Path | None = None) -> str:
    """Return the message about a machine that visits the folder of the path, or another folder in its place."""
    place = tmp_path / "place"
    with probing({str(place): f"{place}/_work"}) as probe:
        (own,) = probe.folders.values()
        if folder is not None:
            shutil.copytree(own, folder, dirs_exist_ok=True) if folder.name == "copy" else folder.mkdir()
        found = visit("the Ray node n", {str(place): str(folder or own)}, {}, probe.nonce)
        probe.check([found], lambda line: None)
        return ""


def test_a_machine_that_shares_the_folder_is_fine_and_no_file_remains(tmp_path: Path) -> None:
    assert visited(tmp_path) == ""
    assert list((tmp_path / "place" / "_work").iterdir()) == []


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (
            "empty",
            "{} is not shared by the Ray node n: it does not see the file that the driver wrote there; give --output",
        ),
        ("copy", "{} is not shared by the Ray node n: its files there are not visible here; give --output"),
    ],
)
def test_a_machine_with_another_disk_is_named(tmp_path: Path, other: str, problem: str) -> None:
    with pytest.raises(NodeCheckError) as raised:
        visited(tmp_path, tmp_path / other)
    assert str(raised.value).startswith(problem.format(tmp_path / "place"))
    assert len(str(raised.value).splitlines()) == 1
    assert list((tmp_path / "place" / "_work").iterdir()) == []


def test_a_place_that_does_not_answer_is_given_up() -> None:
    assert within(Event().wait, seconds=0.1) == "no answer within 0.1 s"


def test_a_place_that_the_driver_cannot_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    looking = probing({"out": f"{tmp_path}/file/_work"})
    with pytest.raises(NodeCheckError, match=r"^out cannot be written from here: File exists; check its permissions"):
        looking.__enter__()


def test_a_machine_without_untold_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        NodeCheckError, match=r"^untold cannot run on the Ray node n: No module named 'untold'; install"
    ):
        with probing({"out": str(tmp_path)}) as probe:
            probe.check([silent("the Ray node n", "No module named 'untold'")], lambda line: None)


def test_versions_that_matter_are_wrong_and_others_only_differ() -> None:
    found = [report(f"node {number}", numpy="2.0") for number in range(5)]
    found += [report("node 5", untold="0.2.0"), report("node 6", python="3.12.1"), report("node 7", python="3.11.9")]
    wrong, differing = compare_versions(OWN, found)
    assert [line.partition(";")[0] for line in wrong] == [
        "untold is 0.2.0 on node 5, 0.1.0 here",
        "python is 3.12.1 on node 6, 3.11.7 here",
    ]
    assert differing == [
        "numpy is 2.0 on node 0, node 1, node 2 and 2 more, 2.1 here",
        "python is 3.11.9 on node 7, 3.11.7 here",
    ]


def test_a_package_that_is_missing_is_wrong_unless_the_machine_has_no_use_for_it() -> None:
    bare: NodeReport = {**silent("n", ""), "versions": {"python": "3.11.7", "untold": "0.1.0", "numpy": "2.1"}}
    assert compare_versions(OWN, [bare], frozenset({"pyspark"})) == ([], [])
    (line,) = compare_versions(OWN, [bare])[0]
    assert line == "pyspark is missing on n; install the same version of untold on the workers, or use `untold package`"
    # Untold can run on a worker without an installation, so its requirements are not known
    sent: NodeReport = {**bare, "versions": {"python": "3.11.7"}}
    assert compare_versions(OWN, [sent]) == ([], [])


def test_the_versions_of_this_machine_include_the_important_packages() -> None:
    assert {"python", "untold", "pyspark", "pyarrow", "ray"} <= versions().keys()


def test_a_ray_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n")

    monkeypatch.setattr("ray.init", refuse)
    told = r"at h:6379 \(Version mismatch: .* Ray: 2.60.0 Python: 3.12.1\)\. Check that"
    with patch.dict(os.environ), pytest.raises(RuntimeError, match=told):
        start_ray("h:6379")


def test_executors_are_checked_by_one_execution_and_a_local_spark_is_not_checked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "manifest.json"
    index.write_text("{}")
    machines = ClusterChecks(spark, {str(tmp_path): f"{tmp_path}/_work"}, [str(index), str(tmp_path / "none")])
    with counted_executions(spark) as found:
        machines.check_executors()
    assert found == [0]
    assert not (tmp_path / "_work").exists()
    monkeypatch.setattr(backends, "is_local", lambda _: False)
    machines = ClusterChecks(spark, machines.places, machines.files)
    with counted_executions(spark) as found:
        machines.check_executors()
        machines.check_executors()
    assert found == [1]
    monkeypatch.setattr(backends, "digest_of", lambda _: "another")
    with pytest.raises(
        NodeCheckError, match=r"manifest.json is not shared by the executor on .*: it reads another file"
    ):
        ClusterChecks(spark, machines.places, machines.files).check_executors()
