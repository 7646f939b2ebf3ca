"""Test that the site builds, that the docs agree with the code, and that cited sections exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from importlib.metadata import metadata
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

import untold
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.main import INTERRUPTED, MENDABLE, WRONG_USE
from untold.jobs.metrics import METRICS
from untold.jobs.run.outcome import EXIT_CODES, FAILED_TOO_MANY, UNDECIDED
from untold.jobs.settings.loading import describe
from untold.jobs.summary.score_counts import COLUMN_OF_STATUS
from untold.jobs.tables import TABLES
from untold.udfs.facts.claim_verdicts import CONTRADICTED, NOT_SUPPORTED, SUPPORTED
from untold.udfs.stages import STAGES
from untold.udfs.stages.definitions import LinearSize

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("methods", "architecture", "contract")


def text_of(name: str) -> str:
    """Return the text of a page and of all pages in its folder."""
    pages = [ROOT / "docs" / f"{name}.md", *sorted((ROOT / "docs" / name).glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


DOCS = {name: text_of(name) for name in NAMES}


def section(doc: str, heading: str) -> str:
    """Return the text of a section up to the next heading of its level."""
    return re.split(r"^## ", DOCS[doc].split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, first: str) -> list[list[str]]:
    """Return the rows of the Markdown table with the first heading `first`."""
    table = text[text.index(f"| {first} |") :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]


def test_stages_and_variables() -> None:
    documented = {name: variables for name, variables, _ in rows(section("methods", "9 Stages"), "stage")}
    assert documented == {name: ", ".join(stage.variables) for name, stage in STAGES.items()}


def read_line(cell: str) -> LinearSize:
    """Return the size in a cell such as `5 and 0.84 a token`. Both parts are optional."""
    slope = re.search(r"([\d.]+) a token", cell)
    base = re.match(r"([\d.]+)(?: and|$)", cell)
    return LinearSize(float(base[1]) if base else 0.0, float(slope[1]) if slope else 0.0)


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


def test_exit_codes() -> None:
    documented = [int(code) for code, _ in rows(section("contract", "Exit codes"), "code")]
    assert documented == sorted({0, MENDABLE, WRONG_USE, INTERRUPTED, FAILED_TOO_MANY, UNDECIDED, *EXIT_CODES.values()})
    agents = rows((ROOT / "docs" / "howto" / "agents.md").read_text(encoding="utf-8"), "code")
    assert [int(code) for codes, _ in agents for code in codes.split(", ")] == documented


def test_extras() -> None:
    documented = {name.strip("`") for name, _ in rows(section("contract", "Extras"), "extra")}
    assert documented == set(metadata("untold").get_all("Provides-Extra") or ()) - {"test", "docs"}


def test_the_readme_is_short_and_has_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert (ROOT / picture).stat().st_size > 10_000
    assert len(text.splitlines()) <= 120


def test_the_example_of_the_readme_is_in_the_shipped_output() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.findall(r"^\| (query|response|covered|missing|score) \| (.*) \|$", text, re.MULTILINE)
    run = untold.open_run(untold.demo_output())
    found = run.sample("01-small")
    (score,) = [row for row in found["scores"] if row["metric"] == "e2e"]
    statements = [row for row in found["statements"] if row["metric"] == "e2e"]
    expected = [(name, found["samples"][0][name]) for name in ("query", "response")]
    expected += [("covered", row["text"]) for row in statements if row["covered"]]
    expected += [("missing", row["text"]) for row in statements if not row["covered"]]
    expected.append(("score", f"{score['score']:.2f}: one of three statements is covered"))
    assert sorted(example) == sorted(expected)


def test_the_readme_lists_all_metrics_and_links_their_pages() -> None:
    listed = rows((ROOT / "README.md").read_text(encoding="utf-8"), "metric")
    assert sorted(name for name, *_ in listed) == sorted(f"[`{name}`](docs/metrics/{name}.md)" for name in METRICS)


def test_measured_figures_of_the_readme_are_on_the_pages_of_measurements() -> None:
    def numbers(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w.,-])\d[\d.,]*(?<=\d)(?![\w-])", text))

    text = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Measured", 1)[1].split("\n## ", 1)[0]
    known = [ROOT / "docs" / name for name in ("explanation/benchmarks.md", "explanation/measured.md", "judge.md")]
    assert {"200,000", "779", "0.1.9", "0.41", "399"} <= numbers(text)
    assert numbers(text) - numbers("\n".join(page.read_text(encoding="utf-8") for page in known)) == set()


def folders() -> Iterator[str]:
    """Yield the paths of the folders of the project in the repository."""
    for top in ("untold", "jobs", "udfs", "graph", "conf", "docs", "tools", "notebooks", "tests"):
        yield top
        mirrored = {f"tests/{name}" for name in ("jobs", "udfs", "graph")}
        for folder in sorted((ROOT / top).iterdir()):
            path = f"{top}/{folder.name}"
            if (
                folder.is_dir()
                and not folder.is_symlink()
                and not folder.name.startswith(("_", "."))
                and path not in mirrored
            ):
                yield path


def test_layout() -> None:
    listed, top = [], ""
    for line in re.findall(r"^    ( *)(\w+)/ +\S", section("architecture", "Layout"), re.MULTILINE):
        indent, name = line
        top = top if indent else name
        listed.append(f"{top}/{name}" if indent else name)
    assert sorted(listed) == sorted(folders())


def test_what_a_person_starts() -> None:
    sentence = (
        r"A person starts these modules of `jobs/`: (.*?)\.\s+Every\s+module\s+may\s+import\s+the\s+other\s+three,"
        r"\s+(\w+),\s+(\w+)\s+and\s+(\w+)"
    )
    listed = re.search(sentence, section("architecture", "Layout"), re.DOTALL)
    assert listed is not None
    started = set(re.findall(r"\w+", listed[1])) - {"and"}
    modules = {file.stem for file in (ROOT / "jobs").glob("*.py")} - {"__init__"}
    assert {*started, *listed.groups()[1:]} == modules


def sources() -> Iterator[tuple[str, str]]:
    for folder in ("jobs", "udfs", "graph", "conf", "tests", "docs", "notebooks"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".md", ".yaml", ".jinja", ".ipynb") and file != Path(__file__):
                yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of the README, of the guide for contributors, and of the site."""
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


PATH = re.compile(r"`((?:jobs|udfs|graph|conf|tests|docs|notebooks)/[\w/.]+)`")
NUMBERED = re.compile(r"\b[Mm]ethods(?:\.md)?,?\s+(?:sections?\s+)?(\d+(?:(?:, | and |, and )\d+)*)")
ELSEWHERE = re.compile(r"(?<!docs/)(?<!\.\./)\b(?:contract|architecture|methods)\.md")
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


def test_files_that_the_docs_name_exist() -> None:
    named = {path for _, text in pages() for path in PATH.findall(text)}
    assert len(named) > 50
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_links_open_from_the_repository() -> None:
    """Readers of the Markdown files have no site. Only the generated pages of the reference are missing."""
    found = [
        (page.parent / link).resolve()
        for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    ]
    assert len(found) > 200
    missing = [str(path.relative_to(ROOT)) for path in found if not path.exists()]
    assert [path for path in missing if not path.startswith("docs/reference/")] == []


def test_the_site_builds_strictly_and_loads_no_external_resource(tmp_path: Path) -> None:
    """A broken link, a missing anchor and a page outside of the navigation are errors."""
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    html = {file.stem: file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.html")}
    assert {key for key, *_ in describe()} <= {
        unescape(code) for code in re.findall("<code>(.*?)</code>", html["settings"])
    }
    assert [name for name, text in html.items() if re.search(r'(?:src|<link[^>]+href)="(?:https?:)?//', text)] == []
    # The index for coding agents has every page of the navigation with a sentence
    index = re.findall(r"^- \[.+\]\((.+)\): (.*)$", (tmp_path / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(index) > 35
    assert [place for place, words in index if len(words) < 10 or not (tmp_path / place).exists()] == []


def glossary() -> list[list[str]]:
    return rows((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "term")


def test_words_of_the_glossary_that_name_code_are_there() -> None:
    known = {
        *COMMANDS,
        *METRICS,
        *STAGES,
        *TABLES,
        *COLUMN_OF_STATUS,
        SUPPORTED,
        CONTRADICTED,
        NOT_SUPPORTED,
        "manifest.json",
        "--cluster",
    }
    known |= {column for schema in TABLES.values() for column in schema.names} | {key for key, *_ in describe()}
    named = [name for _, meaning in glossary() for name in re.findall(r"`([^`]+)`", meaning)]
    assert len(named) > 40
    assert [name for name in named if name not in known] == []


def test_a_term_is_defined_in_one_sentence_and_is_used() -> None:
    assert len(glossary()) >= 40
    text = " ".join(text for file, text in pages() if file != "docs/glossary.md").lower()
    assert [term for term, meaning in glossary() if ". " in meaning or term not in text] == []


def words_to_avoid() -> list[str]:
    """Return the words and phrases that the glossary rejects."""
    listed = rows((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "instead of")
    return ", ".join(words for words, _ in listed).split(", ")


def test_words_to_avoid_are_avoided() -> None:
    avoided = re.compile(rf"\b(?:{'|'.join(words_to_avoid())})\b", re.IGNORECASE)
    prose = {file: re.sub(r"`[^`]*`", "", text) for file, text in pages() if file != "docs/glossary.md"}
    assert {file: avoided.findall(text) for file, text in prose.items() if avoided.search(text)} == {}


def test_messages_of_the_troubleshooting_page_are_in_the_code() -> None:
    source = "\n".join(text for file, text in sources() if file.startswith(("jobs/", "udfs/")))
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        message
        for line in re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
        for message in re.findall("`([^`]+)`", line)
    ]
    assert len(quoted) > 20
    assert [message for message in quoted if message not in source] == []


def test_sections_of_the_tour_are_short() -> None:
    tour = re.sub(r"^```.*?^```$", "", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M | re.S)
    lengths = {part.splitlines()[0]: len(part.splitlines()) for part in tour.split("\n## ")[1:]}
    assert len(lengths) >= 10
    assert {name for name, lines in lengths.items() if lines >= 30} == set()
