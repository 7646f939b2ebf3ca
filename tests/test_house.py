"""Keep the house in order: length of files, names of classes, and product lines per folder."""

from __future__ import annotations

import ast
import json
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("jobs", "udfs", "graph", "untold")
LONGEST_FILE = 600
MOST_MODULES = 260
# A change that raises a number does it in the same commit, and explains it in the message
LINES = ROOT / "tests" / "folder_lines.json"


def product_files() -> list[Path]:
    """Return the Python files of the product. `untold` links to the other folders: its links are not followed."""
    return [file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*.py"))]


def line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_no_file_exceeds_the_limit() -> None:
    assert [str(file) for file in product_files() if line_count(file) > LONGEST_FILE] == []


def test_the_number_of_modules_does_not_grow() -> None:
    assert len(product_files()) <= MOST_MODULES


def test_a_class_name_occurs_once() -> None:
    """A private class counts by its name without the underscore."""
    named = defaultdict(list)
    for file in product_files():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                named[node.name.lstrip("_")].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: places for name, places in named.items() if len(places) > 1} == {}


def test_no_folder_has_more_lines_than_its_number() -> None:
    lines: Counter[str] = Counter()
    for file in product_files():
        lines[str(file.parent.relative_to(ROOT))] += line_count(file)
    numbers = json.loads(LINES.read_text(encoding="utf-8"))
    assert set(lines) == set(numbers)
    assert {folder: count for folder, count in lines.items() if count > numbers[folder]} == {}
    # A number that is far too high hides growth
    assert {folder: count for folder, count in lines.items() if count < 0.98 * numbers[folder] - 10} == {}
