"""REALSumm: 100 articles, summaries of each by many systems, and people's labels of what facts each summary states.

Bhandari et al. 2020. A folder of files of one line an article: `ids.txt`, `documents.txt`, `SCUs.txt` (facts by tabs),
and for each system `summaries/<system>.summary` and `labels/<system>.label` (1 or 0 a fact, by tabs).
"""

from __future__ import annotations

from collections.abc import Iterator

from untold.udfs.samples.file_records import FileRecord, Unit, UnreadableFileError
from untold.udfs.samples.files import open_text

LABELS = "*/labels/*.label"
# The data set has no questions; what all its systems were asked to do
QUERY = "Summarise the article."
_OF_ARTICLES = ("ids.txt", "documents.txt", "SCUs.txt")


def read_system(unit: Unit) -> Iterator[FileRecord]:
    """The summaries of the system whose labels a unit is, each with its article as context, and its facts.

    Facts are aspects and references alike: both are what a summary ought to cover.

    Raises UnreadableFileError where the files beside it have another number of lines, OSError where one is missing.
    """
    folder, system = _place(unit.path)
    names = [f"{folder}/{name}" for name in _OF_ARTICLES]
    names += [f"{folder}/summaries/{system}.summary", unit.path]
    columns = [_lines(name) for name in names]
    for name, lines in zip(names, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise UnreadableFileError(
                f"{name} has {len(lines):,} lines and {names[0]} {len(columns[0]):,}; give the data set whole"
            )
    for row in zip(*columns, strict=True):
        yield _record(system, *row)


def _place(path: str) -> tuple[str, str]:
    """The folder of the data set, and the system.

    >>> _place("data/realsumm/labels/abs_bart_out.label")
    ('data/realsumm', 'abs_bart_out')
    """
    folder, _, name = path.rpartition("/labels/")
    return folder, name.removesuffix(".label")


def _lines(path: str) -> list[str]:
    # Split by line feeds alone: an article may hold other ends of lines
    with open_text(path, newline="\n") as stream:
        return [line.rstrip("\r\n") for line in stream]


def _record(system: str, article: str, document: str, facts: str, summary: str, labels: str) -> FileRecord:
    texts, marks = facts.split("\t"), labels.split("\t")
    if len(texts) != len(marks):
        return FileRecord(
            problem=f"{len(marks)} labels where its article has {len(texts)} facts", raw=f"{article} {system}"
        )
    items = [
        {"id": str(place), "text": text, "labels": [mark]}
        for place, (text, mark) in enumerate(zip(texts, marks, strict=True), start=1)
    ]
    return FileRecord(
        {
            "sample_id": f"{article}-{system}",
            "query_id": article,
            "query": QUERY,
            "response": summary,
            "contexts": [{"id": "article", "text": document}],
            "system": system,
            "aspects": items,
            "references": items,
        }
    )
