"""The results of benchmarks: measured figures with their goals, as a table and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

# Ray runs actors on uvloop if it is installed. Untold does not require it, and figures differ with it
PACKAGES = ("untold", "pyspark", "ray", "openai", "aiohttp", "pyarrow", "uvloop")
HEADER = ("name", "goal", "figure", "met", "single values")


@dataclass(frozen=True)
class Options:
    """The options of the command line. None is the default of the benchmark."""

    requests: int | None = None
    pairs: int | None = None
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    stored: int = 1_000_000
    graphs: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    nights: tuple[int, ...] = (30, 365)
    vectors: int | None = None


@dataclass(frozen=True)
class Figure:
    """A measured figure: its values, and the goal for their median, if any."""

    name: str
    values: tuple[float, ...]
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Return True if the median reaches the goal, or None without a goal."""
        if self.at_least is not None:
            return self.median >= self.at_least
        return self.median <= self.at_most if self.at_most is not None else None

    @property
    def goal(self) -> str:
        """Return the goal as text, empty without one."""
        if self.at_least is not None:
            return f">= {_number(self.at_least)}"
        return f"<= {_number(self.at_most)}" if self.at_most is not None else ""


def show_figures(title: str, figures: Sequence[Figure]) -> None:
    """Print the figures of a benchmark as a table."""
    rows = [HEADER, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    print(f"\n{title}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip(), flush=True)


def figures_to_json(results: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    """Return all results and a description of the machine, as plain JSON values."""
    return {
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: _version(name) for name in PACKAGES},
        "benchmarks": {name: [_plain(figure) for figure in figures] for name, figures in results.items()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cells(figure: Figure) -> tuple[str, ...]:
    met = {True: "yes", False: "NO", None: ""}[figure.met]
    value = f"{_number(figure.median)} {figure.unit}".rstrip()
    return figure.name, figure.goal, value, met, " ".join(_number(value) for value in figure.values)


def _plain(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "at_least": figure.at_least,
        "at_most": figure.at_most,
        "median": figure.median,
        "values": list(figure.values),
        "met": figure.met,
    }


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
