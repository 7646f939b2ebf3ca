"""Generate pages of the site for MkDocs: the reference from the code, and the files of the root."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import pyarrow as pa
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import untold
from untold.jobs import study_tables, tables
from untold.jobs.cli.commands import COMMANDS
from untold.jobs.cli.values import known_formats, question_formats
from untold.jobs.metrics import METRICS
from untold.jobs.settings.layers import shipped_names
from untold.jobs.settings.loading import describe
from untold.jobs.settings.model import Settings
from untold.jobs.settings.templates import find_template, stages_that_differ
from untold.udfs.samples.adapters import FORMATS, Adapter
from untold.udfs.samples.labelled import CLAIM_FORMATS
from untold.udfs.stages import STAGES

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = re.compile(r"((?:^# [^\n]*\n)+)(\w+) = pa\.schema\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
COLUMN = re.compile(r'^ +\("(\w+)", .*\),(?:  # (.*))?$', re.MULTILINE)
TABLES_IN_GENERAL = """
Columns are only added. Any column may be null, which means that a value does not exist or is unknown. Ids are texts.
Scores and rates lie between 0 and 1. [Contract, Tables](../contract/output.md#tables) explains values.
"""


def on_files(site: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for place, page in PAGES.items():
        site.append(File.generated(config, place, content=page()))
    return site


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def root_file(name: str) -> str:
    """Return a file of the root as a page. Its links start in `docs/`, and other root files are pages too."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for file, place in {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}.items():
        text = text.replace(f"]({file}", f"]({place}")
    return text.replace("[Apache 2.0](LICENSE)", "Apache 2.0")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with links to the pages of root files. In the repository, the links name the files."""
    return markdown.replace("](../../CONTRIBUTING.md", "](../contributing.md")


def commands() -> str:
    parts = ["# Commands\n\n`untold COMMAND --help` prints the same.\n"]
    for name, command in COMMANDS.items():
        context = click.Context(command, info_name=f"untold {name}")
        usage = " ".join([f"untold {name}", *command.collect_usage_pieces(context)])
        records = [one.get_help_record(context) for one in command.params if isinstance(one, click.Option)]
        options = table(("option", "meaning"), [(f"`{record[0]}`", record[1]) for record in records if record])
        parts.append(f"## {name}\n\n{sentence(command.help or name)}\n\n    {usage}\n\n{options}")
    return "\n".join(parts)


def settings() -> str:
    heads = ("setting", "default", "takes", "meaning")
    usual, advanced = (
        [(f"`{key}`", f"`{default}`", allowed, meaning) for key, allowed, default, meaning in describe(advanced=rare)]
        for rare in (False, True)
    )
    parts = ["# Settings\n", "[Contract, Settings](../contract/commands.md#settings) says which layer wins.\n"]
    parts += [table(heads, usual), "## Advanced settings\n\nFew runs need them.\n", table(heads, advanced)]
    parts.append("## Presets\n")
    for name in shipped_names("endpoints"):
        text = (ROOT / "conf" / "endpoints" / f"{name}.yaml").read_text(encoding="utf-8")
        parts.append(f"### {name}\n\n```yaml\n{text}```\n")
    parts.append("## Profiles\n")
    for name in shipped_names("profiles"):
        text = (ROOT / "conf" / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
        parts.append(f"### {name}\n\n```yaml\n{text}```\n")
    return "\n".join(parts)


def schemas() -> dict[str, tuple[str, dict[str, str]]]:
    """Return the comments about the rows and the columns of each schema in the code, by the name of the schema."""
    # The one schema whose columns are the fields of a class
    found: dict[str, tuple[str, dict[str, str]]] = {
        "COMPLETIONS": ("A request of a stage in a store, answered or failed", {})
    }
    for said, name, body in SCHEMA.findall(inspect.getsource(tables) + inspect.getsource(study_tables)):
        meanings = dict(COLUMN.findall(body))
        found[name] = (" ".join(line.removeprefix("# ") for line in said.splitlines()), meanings)
    return found


def described_tables() -> str:
    described = schemas()
    names = {
        id(value): name for name, value in (vars(tables) | vars(study_tables)).items() if isinstance(value, pa.Schema)
    }
    parts = ["# Tables\n", "Below each name: what one row is.", TABLES_IN_GENERAL]
    for name, schema in tables.TABLES.items():
        row, meanings = described[names[id(schema)]]
        rows = [(f"`{field.name}`", f"`{field.type}`", meanings.get(field.name, "")) for field in schema]
        parts.append(f"## {name}\n\n{sentence(row)}\n")
        parts.append(table(("column", "type", "meaning"), rows))
    return "\n".join(parts)


def metrics() -> str:
    defaults = Settings()
    parts = ["# Metrics\n", "Stages and columns under the default settings.\n"]
    for name, metric in METRICS.items():
        rows = [
            ("columns that a sample needs", code(metric.columns(defaults))),
            ("columns that it reads if present", code(metric.reads)),
            ("stages", code(metric.asks(defaults))),
            ("tables", code(metric.tables)),
        ]
        parts.append(f"## {name}\n\n" + table(("of the metric", "names"), rows))
    return "\n".join(parts)


def stages() -> str:
    parts = [
        "# Stages\n",
        "Each stage with its variables, the columns that it gives, its schema, and its shipped template.\n",
    ]
    parts.append('In a schema, `"enum": "claims"` stands for the numbers of the claims that a request shows, from 1.\n')
    for name, stage in STAGES.items():
        columns = code(f"{field.name}: {field.type}" for field in stage.output)
        template = find_template(name, "chat", None)
        parts.append(f"## {name}\n\nVariables: {code(stage.variables)}. Gives: {columns}.\n")
        if stage.schema is not None:
            parts.append(f"````json\n{json.dumps(stage.schema, indent=1)}\n````\n")
        parts.append(f"````text\n{template.source.rstrip()}\n````\n")
        if name in stages_that_differ():
            source = find_template(name, "chat", None, "published").source
            parts.append(f"With `prompt_set=published`:\n\n````text\n{source.rstrip()}\n````\n")
    return "\n".join(parts)


def _needs(adapter: Adapter) -> Iterable[str]:
    """Return the columns of a format. Mapped columns have the names of the format."""
    return adapter.required or [name for names in adapter.names.values() for name in names]


def formats() -> str:
    known = {
        "Samples (`untold score --format`)": (FORMATS, FORMATS),
        "Questions (`untold generate --format`)": (question_formats(), FORMATS),
        "Labelled coverage (`--dataset coverage --format`)": (known_formats("items"), FORMATS),
        "Labelled claims (`--dataset claims --format`)": (CLAIM_FORMATS, CLAIM_FORMATS),
    }
    intro = "Untold reads these formats. The [contract](../contract/input.md#samples) describes each of them.\n"
    parts = ["# Data formats\n", intro]
    for heading, (names, adapters) in known.items():
        rows = [(f"`{name}`", code(_needs(adapters[name])) if name in adapters else "") for name in names]
        parts.append(f"## {heading}\n\n{table(('format', 'columns that a row needs'), rows)}")
    return "\n".join(parts)


def python_api() -> str:
    """Return the public names of `import untold`, with the docstrings of their methods."""
    parts = [
        "# Python API\n",
        "The public names of `import untold`. [Use Untold from Python](../howto/python.md) has examples.\n",
    ]
    for name in untold.__all__:
        value = getattr(untold, name)
        if inspect.ismodule(value) or isinstance(value, str):
            continue
        parts.append(described(f"## untold.{name}", value))
        members = inspect.getmembers(value) if inspect.isclass(value) else ()
        parts += [
            described(f"### {name}.{member}", found)
            for member, found in members
            if not member.startswith("_") and inspect.isfunction(found) and found.__doc__
        ]
    return "\n".join(parts)


def described(heading: str, value: object) -> str:
    """Return the heading, the signature and the docstring of a class or a function."""
    assert callable(value)
    name = heading.rpartition(".")[2]
    try:
        signature = f"```python\n{name}{inspect.signature(value)}\n```\n\n"
    except ValueError:
        signature = ""
    return f"{heading}\n\n{signature}```text\n{inspect.getdoc(value)}\n```\n"


def errors() -> str:
    """Return the messages of errors that users can fix, by the module that raises them."""
    trees = {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("jobs", "udfs")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {"UserError"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    parts = [
        "# Error messages\n",
        "The constant parts of all messages that a user can fix, by module. `...` is a value.\n",
    ]
    for path, tree in trees.items():
        if found := sorted({*messages(tree, known)}):
            parts.append(
                f"## {path}\n\n" + table(("message", "error"), ((f"`{text}`", f"`{kind}`") for text, kind in found))
            )
    return "\n".join(parts)


def messages(tree: ast.Module, known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the message and the class of each raised error. Errors whose message is computed elsewhere are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            name, arguments = node.exc.func.id, node.exc.args
            if name in known and arguments and isinstance(arguments[0], (ast.Constant, ast.JoinedStr)):
                values = arguments[0].values if isinstance(arguments[0], ast.JoinedStr) else [arguments[0]]
                text = "".join(str(one.value) if isinstance(one, ast.Constant) else "..." for one in values)
                yield re.sub(r"(?:\.\.\.)+", "...", " ".join(text.replace("`", "'").split())), name


def llms() -> str:
    """Return the index of the site for coding agents: the title, the address and the first sentence of each page."""
    nav = re.findall(r"^ +- ([^:\n]+): ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    lines = ["# Untold", "", "> Scores which facts of the source texts an LLM response covers.", "", "## Pages", ""]
    for title, place in nav:
        page = PAGES[place]() if place in PAGES else (ROOT / "docs" / place).read_text(encoding="utf-8")
        lines.append(f"- [{title}]({place.removesuffix('.md')}.html): {first_sentence(page)}")
    return "\n".join(lines) + "\n"


def first_sentence(page: str) -> str:
    """Return the first sentence of the first paragraph of a page."""
    paragraphs = (part for part in page.split("\n\n") if re.match(r"[A-Z`]", part))
    words = " ".join(next(paragraphs, "").split())
    return re.split(r"(?<=[a-z`)][.:]) (?=[A-Z])", words, maxsplit=1)[0].rstrip(":")


PAGES = {
    "index.md": lambda: root_file("README.md"),
    "contributing.md": lambda: root_file("CONTRIBUTING.md"),
    "changelog.md": lambda: root_file("CHANGELOG.md"),
    "reference/commands.md": commands,
    "reference/settings.md": settings,
    "reference/tables.md": described_tables,
    "reference/metrics.md": metrics,
    "reference/stages.md": stages,
    "reference/formats.md": formats,
    "reference/python.md": python_api,
    "reference/errors.md": errors,
    "llms.txt": llms,
}
