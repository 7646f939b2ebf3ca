"""Test the readers of published data sets with their own file layouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.inter_rater import fleiss_kappa as kappa_of_statsmodels

from untold.udfs.samples import data_sets, labelled
from untold.udfs.samples.adapters import FORMATS
from untold.udfs.samples.batches import expanded
from untold.udfs.samples.data_sets import QUERY, questions, read_answers, read_system, read_topics
from untold.udfs.samples.file_records import READERS, FileRecord, Unit, UnreadableFileError
from untold.udfs.samples.labelled import CLAIM_FORMATS
from untold.udfs.statistics.item_agreement import fleiss_kappa

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
    """Write two articles and one system. The arguments replace the text of a file."""
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
    facts = [{"id": "1", "text": "Bees fly.", "labels": ["1"]}, {"id": "2", "text": "Bees sting.", "labels": ["0"]}]
    assert first.values == {
        "sample_id": "a1-s.x",
        "query_id": "a1",
        "query": QUERY,
        "response": "Bees fly and sting .",
        "contexts": [{"id": "article", "text": "First article ."}],
        "system": "s.x",
        "aspects": facts,
        "references": facts,
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


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def answers_of_k_qa(data: Path) -> list[dict[str, Any]]:
    path = data / "k_qa" / "NLI_medical_annotator.csv"
    return [dict(record.values) for record in read_answers(Unit(0, str(path), ""))]


def test_k_qa_has_the_figures_of_its_labels(data: Path) -> None:
    """A reference is covered if most physicians label it as entailed. The figures only depend on the labels."""
    samples = answers_of_k_qa(data)
    assert (len({sample["sample_id"] for sample in samples}), len(samples)) == (50, 50)
    assert [samples[0]["sample_id"], samples[-1]["sample_id"].partition("-")[0]] == ["0-gpt35", "49"]
    shares: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        covered = [one["labels"].count("Entailment") >= 2 for one in sample["references"]]
        weights = [one["weight"] for one in sample["references"]]
        shares["all"].append(mean(covered))
        shares["weighted"].append(sum(map(mul, weights, covered)) / sum(weights))
        for kind in ("Must_have", "Nice_to_have"):
            own = [one for one, of in zip(covered, sample["reference_types"], strict=True) if of == kind]
            shares[kind] += [mean(own)] if own else []
    found = {name: (round(mean(values), 4), len(values)) for name, values in shares.items()}
    assert found["all"] == (0.3907, 50)
    assert found["Must_have"][0] == 0.5147
    assert found["Nice_to_have"] == (0.3024, 40)
    assert found["weighted"] == (0.4187, 50)


def test_k_qa_has_the_agreement_of_its_physicians(data: Path) -> None:
    labels = [one["labels"] for sample in answers_of_k_qa(data) for one in sample["references"]]
    assert (len(labels), {len(each) for each in labels}) == (399, {3})
    kinds = ("Entailment", "Neutral", "Contradiction")
    three = [[each.count(kind) for kind in kinds] for each in labels]
    two = [[row[0], row[1] + row[2]] for row in three]
    for table, expected in ((three, 0.7189), (two, 0.7149)):
        assert round(kappa_of_statsmodels(np.array(table)), 4) == expected
        kappa = fleiss_kappa(table)
        assert kappa is not None
        assert round(kappa, 4) == expected


def test_k_qa_has_statements_of_both_kinds_yet_to_be_weighed(data: Path) -> None:
    rows = READERS["lines"](Unit(0, str(data / "k_qa" / "questions_w_answers.jsonl"), "lines"))
    samples = [sample for row, record in enumerate(rows) for sample in questions(record.values, row)]
    assert (len(samples), [sample["sample_id"] for sample in samples[:2]]) == (201, ["0", "1"])
    assert all(sample["response"] for sample in samples)
    kinds = Counter(kind for sample in samples for kind in sample["reference_types"])
    assert kinds == {"Must_have": 892, "Nice_to_have": 697}
    references = [one for sample in samples for one in sample["references"]]
    assert len(references) == 892 + 697
    assert all(set(one) == {"id", "text"} for one in references)


def read_lines(folder: Path) -> list[FileRecord]:
    return [
        record for file in sorted(folder.glob("*.jsonl")) for record in READERS["lines"](Unit(0, str(file), "lines"))
    ]


def test_expertqa_has_its_answers_its_references_and_its_claims(data: Path) -> None:
    rows = read_lines(data / "expertqa")
    samples = [sample for row, record in enumerate(rows) for sample in data_sets.answers(record.values, row)]
    assert len(rows) == len(samples) == 885
    distinct = {sample["sample_id"]: sample for sample in samples}
    assert len(distinct) == 479
    # One of the responses is the same in all files, so it is one sample
    assert all(sample == distinct[sample["sample_id"]] for sample in samples)
    references = [len(sample["references"]) for sample in distinct.values()]
    assert (sum(references), sum(map(bool, references))) == (2189, 459)
    claims = {
        claim["sample_id"]: claim for row, record in enumerate(rows) for claim in data_sets.claims(record.values, row)
    }
    labels = Counter(claim["label"] for claim in claims.values())
    assert labels == {"supported": 1587, "not_supported": 590}
    assert round(labels["supported"] / len(claims), 3) == 0.729


def test_factscore_has_its_published_precision(data: Path) -> None:
    shares = {}
    for file in sorted((data / "factscore_human").glob("*.jsonl")):
        claims = [record.values for record in labelled.read_claims(Unit(0, str(file), ""))]
        assert len({claim["sample_id"] for claim in claims}) == len(claims)
        shares[claims[0]["system"]] = round(mean([claim["label"] == "supported" for claim in claims]), 4)
    assert shares == {"ChatGPT": 0.6537, "InstructGPT": 0.5158, "PerplexityAI": 0.8642}


def test_answers_of_k_qa_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    header = "Question,llm_x,answer,claim,category_x,label_0,label_1,label_2"
    rows = ["q,m,a,c,Must_have,Neutral,Neutral,Neutral", "q,n,a,c,Perhaps,Neutral,Neutral,Neutral", "q,n"]
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]))
    first, *others = read_answers(Unit(0, str(tmp_path / "a.csv"), ""))
    assert first.values["references"] == [{"id": "1", "text": "c", "weight": 1.0, "labels": ["Neutral"] * 3}]
    assert [one.problem for one in others] == [
        "statement 1 is neither Must_have nor Nice_to_have",
        "2 cells where the header has 8",
    ]
    (tmp_path / "b.csv").write_text(header.replace("claim", "Claim") + "\n" + rows[0])
    with pytest.raises(UnreadableFileError, match=r"no column `claim` \(did you mean `Claim`\?\)\. Give NLI_medical"):
        list(read_answers(Unit(0, str(tmp_path / "b.csv"), "")))


# These rows have the format of the public files, but the content of the files is not copied
QAMPARI = {
    "qid": "7__wikidata_simple__dev",
    "question_text": "Which boats did the yard of Osk build?",
    "entities": [{"entity_text": "Osk yard", "aliases": []}],
    "answer_list": [
        {
            "answer_text": "Marigold",
            "aliases": ["Marigold", "The Marigold"],
            "aid": "7__a0",
            "proof": [
                {"proof_text": "The Marigold was laid down at Osk.", "pid": "7__a0__0", "found_in_url": "u"},
                {"proof_text": "The Marigold was laid down at Osk.", "pid": "7__a0__1", "found_in_url": "v"},
                {"proof_text": "She left the yard in 1911.", "pid": "7__a0__2", "found_in_url": "u"},
            ],
        },
        {"answer_text": "Teasel", "aliases": ["Teasel"], "aid": "7__a1", "proof": []},
    ],
}
ROMQA = {
    "id": 12,
    "cluster_id": 3,
    "question": "Painter born in Osk. Not a sailor",
    "constraints": [],
    "candidates": [
        {
            "uri": "w/1",
            "text": "Ada Reed",
            "aliases": [],
            "desc": "",
            "is_answer": True,
            "evidence": [{"text": "Ada."}],
        },
        {"uri": "w/2", "text": "Bo Sand", "aliases": [], "desc": "", "is_answer": False, "evidence": [{"text": "Bo."}]},
    ],
    "complete_answer": [
        {"uri": "w/1", "text": "Ada Reed", "aliases": [], "desc": ""},
        {"uri": "w/3", "text": "Cy Holm", "aliases": [], "desc": ""},
    ],
}


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        (
            "qampari",
            QAMPARI,
            {
                "sample_id": "7__wikidata_simple__dev",
                "query_id": "7__wikidata_simple__dev",
                "query": "Which boats did the yard of Osk build?",
                "contexts": ["Marigold: The Marigold was laid down at Osk. She left the yard in 1911."],
                "references": [
                    {
                        "id": "7__a0",
                        "anchor": "Marigold",
                        "text": "The Marigold was laid down at Osk. She left the yard in 1911.",
                    },
                    {"id": "7__a1", "anchor": None, "text": "Teasel"},
                ],
            },
        ),
        (
            "romqa",
            ROMQA,
            {
                "sample_id": 12,
                "query_id": 12,
                "query": "Painter born in Osk. Not a sailor",
                "contexts": ["Ada Reed: Ada."],
                "references": [
                    {"id": "w/1", "anchor": "Ada Reed", "text": "Ada."},
                    {"id": "w/3", "anchor": None, "text": "Cy Holm"},
                ],
            },
        ),
    ],
)
def test_an_answer_of_a_list_is_a_reference_with_its_proof(
    name: str, row: dict[str, Any], expected: dict[str, Any]
) -> None:
    (question,) = expanded(FORMATS[name], FileRecord(row), 0)
    assert question.values == expected
    broken = FileRecord(problem="no JSON", raw="x")
    assert expanded(FORMATS[name], broken, 0) == [broken]


def test_claims_become_samples() -> None:
    rows: list[dict[str, Any]] = [
        {"claim": "c", "evidence": ["e", "f"], "label": "supported", "system": "s"},
        {"claim": "c", "evidence": "one text", "label": "Yes"},
        {"claim": "c", "evidence": '["e"]', "label": True},
        {"claim": "c", "label": "x"},
        {"evidence": []},
    ]
    *found, last = [sample for row in rows for sample in expanded(CLAIM_FORMATS["claims"], FileRecord(row), 0)]
    assert [sample.values["contexts"] for sample in found] == [["e", "f"], ["one text"], ["e"], []]
    assert found[0].values == {"response": "c", "contexts": ["e", "f"], "label": "supported", "system": "s"}
    assert last.problem == "claim and label is null"
