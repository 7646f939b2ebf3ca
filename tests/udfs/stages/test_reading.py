"""Markers, lone Nones and thoughts, as all stages read them."""

from __future__ import annotations

from untold.udfs.stages.reading import is_none, split_marker, strip_thinking


def test_a_marker_is_taken_once() -> None:
    assert split_marker("  - - a").text == "- a"
    assert split_marker("-5 °C").marked is False
    assert split_marker("-The sun").text == "The sun"


def test_only_a_lone_none_is_none() -> None:
    assert is_none("‘None’.")
    assert not is_none("None of them")
    assert not is_none("")


def test_every_leading_think_block_goes() -> None:
    assert strip_thinking(" <Think>a</THINK>\n<think>b</think> c") == "c"
