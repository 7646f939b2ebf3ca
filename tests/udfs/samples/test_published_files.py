"""Data sets whose files have layouts of their own, read as they are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from udfs.samples.realsumm import QUERY, read_system
from udfs.samples.records import Unit, UnreadableFileError
from udfs.samples.trec_web import read_topics

TOPICS = """<?xml version="1.0"?>
<!DOCTYPE webtrack2009 [ <!ELEMENT webtrack2009 (topic)*> ]>
<webtrack2009>
<topic number="7" type="faceted">
  <query>bees &amp; honey</query>
  <description>How do bees
  make honey?
  </description>
  <subtopic number="1" type="inf"> What is
    nectar? </subtopic>
  <subtopic number="3" type="inav">Find the hive.</subtopic>
</topic>
<topic number="8" type="single"><query>q</query><description>Alone.</description></topic>
<topic type="single"><query>nameless</query></topic>
</webtrack2009>
"""


def test_a_topic_is_a_query_with_its_subtopics_as_aspects(tmp_path: Path) -> None:
    path = tmp_path / "topics.web.1-50.txt"
    path.write_text(TOPICS)
    faceted, single, nameless = read_topics(Unit(0, str(path), ""))
    assert faceted.values == {
        "sample_id": "7",
        "query_id": "7",
        "query": "How do bees make honey?",
        "topic": "bees & honey",
        "topic_type": "faceted",
        "aspects": [{"id": "1", "text": "What is nectar?"}, {"id": "3", "text": "Find the hive."}],
        "aspect_types": ["inf", "inav"],
    }
    assert (single.values["query"], single.values["aspects"]) == ("Alone.", [])
    assert nameless.problem == "a topic without a number"


def test_topics_cut_short_are_refused_at_their_line(tmp_path: Path) -> None:
    path = tmp_path / "topics.web.1-50.txt"
    path.write_text(TOPICS.partition("<subtopic")[0])
    with pytest.raises(UnreadableFileError, match=r"^no XML of topics \(line 9\)"):
        list(read_topics(Unit(0, str(path), "")))


def test_topics_1_to_200_have_824_subtopics(data: Path) -> None:
    files = sorted((data / "trec_web").glob("topics.web.*"))
    topics = {int(one.values["query_id"]): one.values for file in files for one in read_topics(Unit(0, str(file), ""))}
    assert set(topics) == set(range(1, 301))
    assert all(topic["query"] for topic in topics.values())
    assert sum(len(topics[number]["aspects"]) for number in range(1, 201)) == 824
    assert sum(len(topic["aspects"]) for topic in topics.values()) == 1090
    types = {one for topic in topics.values() for one in topic["aspect_types"]}
    assert {"inf", "nav", "inav", "inv"} == types


def write_summaries(folder: Path, **changed: str) -> str:
    """Two articles and one system; texts of files by their names."""
    texts = {
        "ids": "a1\na2",
        "documents": "First article .\nSecond article .",
        "SCUs": "Bees fly.\tBees sting.\nWater boils.",
        "summary": "Bees fly and sting .\n",
        "labels": "1\t0\n1",
        **changed,
    }
    for name, place in {
        "ids": "ids.txt",
        "documents": "documents.txt",
        "SCUs": "SCUs.txt",
        "summary": "summaries/s.x.summary",
        "labels": "labels/s.x.label",
    }.items():
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text(texts[name])
    return str(folder / "labels/s.x.label")


def test_a_summary_is_a_sample_with_its_articles_facts_and_their_labels(tmp_path: Path) -> None:
    path = write_summaries(tmp_path, summary="Bees fly and sting .\n\n")
    first, second = read_system(Unit(0, path, ""))
    assert first.values == {
        "sample_id": "a1-s.x",
        "query_id": "a1",
        "query": QUERY,
        "response": "Bees fly and sting .",
        "contexts": [{"id": "article", "text": "First article ."}],
        "system": "s.x",
        "aspects": [
            {"id": "1", "text": "Bees fly.", "labels": ["1"]},
            {"id": "2", "text": "Bees sting.", "labels": ["0"]},
        ],
    }
    assert (second.values["response"], len(second.values["aspects"])) == ("", 1)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    path = write_summaries(tmp_path)
    with pytest.raises(UnreadableFileError, match=r"summaries/s\.x\.summary has 1 lines and .*ids\.txt 2"):
        list(read_system(Unit(0, path, "")))
    path = write_summaries(tmp_path, summary="one\ntwo", labels="1\n1")
    assert [record.problem for record in read_system(Unit(0, path, ""))] == [
        "1 labels where its article has 2 facts",
        None,
    ]


def test_realsumm_is_whole(data: Path) -> None:
    files = sorted((data / "realsumm" / "labels").glob("*.label"))
    samples = [record.values for file in files for record in read_system(Unit(0, str(file), ""))]
    assert len({sample["system"] for sample in samples}) == 25
    assert len({sample["query_id"] for sample in samples}) == 100
    assert len({sample["sample_id"] for sample in samples}) == len(samples) == 2500
    labels = [label for sample in samples for aspect in sample["aspects"] for label in aspect["labels"]]
    assert (len(labels), set(labels)) == (26400, {"0", "1"})
