from __future__ import annotations

from pathlib import Path

from untold.jobs.run.manifest import differences, read_manifest, write_manifest

SECRET = "s3cr3t-of-a-header"


def test_a_manifest_is_written_without_secrets(tmp_path: Path) -> None:
    headers = {"headers": {"X-Own": SECRET}}
    write_manifest(
        str(tmp_path), {"settings": {"llm": {"extra_body": headers}}, "input": {"path": f"s3://a:{SECRET}@b"}}
    )
    assert SECRET not in (tmp_path / "manifest.json").read_text()


def test_an_output_that_was_made_with_a_secret_is_the_same_output_again(tmp_path: Path) -> None:
    decoding = {"stages": {"judge": {"extra_body": {"headers": {"X-Own": SECRET}, "seed": 1}}}}
    identity = {"input": "print", "metrics": ["e2e"], "results": decoding, "stages": {"judge": "digest"}}
    write_manifest(str(tmp_path), {"identity": identity})
    written = read_manifest(str(tmp_path))
    assert written is not None
    assert differences(identity, written["identity"]) == []
    other = {**identity, "stages": {"judge": "another digest"}}
    assert differences(other, written["identity"]) == ["another model or template"]
