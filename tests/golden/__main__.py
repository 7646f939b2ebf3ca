"""Compute the golden outputs, and compare them with the frozen tables. With `--write`, freeze the tables instead."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import monotonic

from tests.golden.comparing import find_difference
from tests.golden.outputs import OUTPUTS
from tests.golden.tables import read_frozen, write_frozen
from tests.golden.workshop import open_workshop


def main(words: Sequence[str]) -> int:
    """Print one line per output. Return 1 if a cell differs or a command fails, and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"outputs, by default all: {', '.join(OUTPUTS)}")
    parser.add_argument("--write", action="store_true", help="replace the frozen files")
    given = parser.parse_args(words)
    if unknown := set(given.names) - set(OUTPUTS):
        parser.error(f"unknown output {', '.join(sorted(unknown))}. Known outputs: {', '.join(OUTPUTS)}")
    differing = 0
    with open_workshop() as workshop:
        for name in given.names or OUTPUTS:
            began = monotonic()
            try:
                tables = OUTPUTS[name](workshop)
            except RuntimeError as error:
                differing += 1
                print(f"{name}: {error}", flush=True)
                continue
            rows = f"{len(tables)} tables, {sum(len(table.rows) for table in tables.values())} rows"
            took = f"{monotonic() - began:.1f} s"
            if given.write:
                write_frozen(name, tables)
                print(f"{name}: {rows} written, {took}", flush=True)
                continue
            difference = find_difference(read_frozen(name), tables)
            differing += difference is not None
            print(f"{name}: {difference or f'{rows} are equal, {took}'}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
