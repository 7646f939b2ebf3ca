"""Topics of the TREC Web Track's diversity task with their subtopics, which are the aspects of a query.

Clarke et al. 2009 to 2012, Collins-Thompson et al. 2013 and 2014; Samarinas et al. 2025 use topics 1 to 200.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from untold.udfs.samples.file_records import FileRecord, Unit, UnreadableFileError, read_text

TOPICS = "*topics.web.*"


def read_topics(unit: Unit) -> Iterator[FileRecord]:
    """The topics of a file as questions: a topic's description is the query. Raises UnreadableFileError for no XML.

    Two topics of 2014 have an empty description: the words that people searched with are their query. Types are carried
    as they are written, whatever they are: the files hold some that their own DTD does not know.
    """
    text = read_text(unit)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, _ = error.position
        raise UnreadableFileError(f"no XML of topics (line {line}); give the files of NIST as they are") from error
    for topic in root.iter("topic"):
        yield _record(topic)


def _record(topic: ElementTree.Element) -> FileRecord:
    number, subtopics, words = topic.get("number"), topic.findall("subtopic"), _text(topic.find("query"))
    if not number:
        return FileRecord(problem="a topic without a number", raw=ElementTree.tostring(topic, encoding="unicode"))
    return FileRecord(
        {
            "sample_id": number,
            "query_id": number,
            "query": _text(topic.find("description")) or words,
            "topic": words,
            "topic_type": topic.get("type"),
            "aspects": [{"id": one.get("number"), "text": _text(one)} for one in subtopics],
            "aspect_types": [one.get("type") for one in subtopics],
        }
    )


def _text(element: ElementTree.Element | None) -> str | None:
    """The text of an element on one line, as its line breaks are the file's."""
    return None if element is None else " ".join("".join(element.itertext()).split())
