"""The docs say what the code does: layout, tables, settings, stages and exit codes, and no section is cited in vain."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.main import INTERRUPTED, MENDABLE, WRONG_USE
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY
from untold.jobs.settings.loading import describe
from untold.jobs.tables import TABLES
from untold.udfs.stages import STAGES
from untold.udfs.stages.figures import Line

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("methods", "architecture", "contract")
DOCS = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
README = (ROOT / "README.md").read_text(encoding="utf-8")
TYPES = {
    "": pa.string(),
    "string": pa.string(),
    "double": pa.float64(),
    "float": pa.float32(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def section(doc: str, heading: str) -> str:
    """The text of a section up to the next heading of its level."""
    return re.split(r"^## ", DOCS[doc].split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, first: str) -> list[list[str]]:
    """The rows of the Markdown table whose first heading is `first`."""
    table = text[text.index(f"| {first} |") :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]


def split_columns(text: str) -> list[str]:
    """Parts between commas that stand in no angle brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "<") - (sign == ">")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def read_type(text: str) -> pa.DataType:
    inner = re.fullmatch(r"(list|struct)<(.*)>", text)
    if inner is None:
        return TYPES[text]
    if inner[1] == "list":
        return pa.list_(read_type(inner[2]))
    return pa.struct([read_field(part) for part in split_columns(inner[2])])


def read_field(text: str) -> pa.Field:
    name, _, kind = text.partition(" ")
    return pa.field(name, read_type(kind))


def test_tables_and_columns() -> None:
    table = rows(section("contract", "Tables"), "table")
    documented = {name: pa.schema(map(read_field, split_columns(columns))) for name, _, columns in table}
    assert list(documented) == list(TABLES)
    for name, schema in TABLES.items():
        assert documented[name] == schema, name


def test_settings_and_defaults() -> None:
    documented = [tuple(row) for row in rows(section("contract", "Settings"), "setting")]
    assert documented == [(key, default, allowed, meaning) for key, allowed, default, meaning in describe()]


def test_stages_and_variables() -> None:
    documented = {name: variables for name, variables, _ in rows(section("methods", "9 Stages"), "stage")}
    assert documented == {name: ", ".join(stage.variables) for name, stage in STAGES.items()}


def read_line(cell: str) -> Line:
    """`5 and 0.84 a token`, either part of it, or nothing."""
    slope = re.search(r"([\d.]+) a token", cell)
    base = re.match(r"([\d.]+)(?: and|$)", cell)
    return Line(float(base[1]) if base else 0.0, float(slope[1]) if slope else 0.0)


def test_shipped_figures() -> None:
    documented = {row[0]: row[1:] for row in rows(section("methods", "9 Stages").split("likely to write")[1], "stage")}
    assert list(documented) == list(STAGES)
    for name, (completion, things, source) in documented.items():
        figures = STAGES[name].figures
        assert figures is not None
        assert (read_line(completion), read_line(things), source) == (
            figures.completion,
            figures.things,
            figures.source,
        )


def test_commands() -> None:
    listed = re.search(r"`untold COMMAND`: ([^.]*)\.", DOCS["contract"])
    assert listed is not None
    assert re.split(r",\s+", listed[1]) == list(COMMANDS)


def test_exit_codes() -> None:
    documented = [int(code) for code, _ in rows(section("contract", "Exit codes"), "code")]
    assert documented == sorted({0, MENDABLE, WRONG_USE, INTERRUPTED, FAILED_TOO_MANY, *EXIT_CODES.values()})
    assert documented == [int(code) for code, _ in rows(README, "exit code")]


def folders() -> Iterator[str]:
    """The folders of the repository that hold what the project is made of, as paths."""
    for top in ("jobs", "udfs", "graph", "conf", "docs", "notebooks", "tests"):
        yield top
        mirrored = {f"tests/{name}" for name in ("jobs", "udfs", "graph")}
        for folder in sorted((ROOT / top).iterdir()):
            path = f"{top}/{folder.name}"
            if folder.is_dir() and not folder.name.startswith(("_", ".")) and path not in mirrored:
                yield path


def test_layout() -> None:
    listed, top = [], ""
    for line in re.findall(r"^    ( *)(\w+)/ +\S", section("architecture", "Layout"), re.MULTILINE):
        indent, name = line
        top = top if indent else name
        listed.append(f"{top}/{name}" if indent else name)
    assert sorted(listed) == sorted(folders())


def test_what_a_person_starts() -> None:
    sentence = r"In `jobs/` itself lie (.*?) which are\s+started, and (\w+) and (\w+)"
    listed = re.search(sentence, section("architecture", "Layout"), re.DOTALL)
    assert listed is not None
    started = set(re.findall(r"\w+", listed[1])) - {"and"}
    modules = {file.stem for file in (ROOT / "jobs").glob("*.py")} - {"__init__"}
    assert {*started, listed[2], listed[3]} == modules


def sources() -> Iterator[tuple[str, str]]:
    for folder in ("jobs", "udfs", "graph", "conf", "tests", "docs", "notebooks"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".md", ".yaml", ".jinja", ".ipynb") and file != Path(__file__):
                yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


NUMBERED = re.compile(r"\b[Mm]ethods(?:\.md)?,?\s+(?:sections?\s+)?(\d+(?:(?:, | and |, and )\d+)*)")
ELSEWHERE = re.compile(r"(?<!docs/)\b(?:contract|architecture|methods)\.md")
NAMED = re.compile(r"docs/(contract|architecture|methods)\.md, \\?\"([^\"\\]+)")


def test_sections_that_are_cited_exist() -> None:
    """`docs/methods.md, section 5`, or `methods, sections 5 and 6` for short, and `docs/contract.md, "Exit codes"`."""
    headings = {name: re.findall(r"^## (.*)$", text, re.MULTILINE) for name, text in DOCS.items()}
    numbers = {heading.split()[0] for heading in headings["methods"]}
    cited, missing = 0, []
    for file, text in sources():
        for found in NUMBERED.finditer(text):
            cited += 1
            missing += [(file, found[0]) for number in re.findall(r"\d+", found[1]) if number not in numbers]
        for found in NAMED.finditer(text):
            cited += 1
            missing += [(file, found[0])] if found[2] not in headings[found[1]] else []
        missing += [(file, found[0]) for found in ELSEWHERE.finditer(text)] if file.endswith(".py") else []
    assert missing == []
    assert cited > 30


@pytest.mark.parametrize("file", [*(f"docs/{name}.md" for name in DOCS), "README.md", "CONTRIBUTING.md"])
def test_files_that_the_docs_name_exist(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    named = re.findall(r"`((?:jobs|udfs|graph|conf|tests|docs|notebooks)/[\w/.]+)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_sections_of_the_tour_are_short() -> None:
    tour = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    lengths = {part.splitlines()[0]: len(part.splitlines()) for part in tour.split("\n## ")[1:]}
    assert len(lengths) >= 10
    assert {name for name, lines in lengths.items() if lines >= 30} == set()
