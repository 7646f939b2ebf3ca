"""The import path and the usable cores of a Python process. Imports no library."""

from __future__ import annotations

import os
import sys


def standard_library() -> list[str]:
    """The folders of the standard library, in the order of `sys.path`."""
    library = os.path.dirname(os.__file__)
    return [path for path in sys.path if path.startswith(library) and "-packages" not in path]


def prefer_standard_library() -> None:
    """Puts the standard library first in `sys.path` and drops the working directory, which `python -m` adds."""
    standard = standard_library()
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    sys.path[:] = [*standard, *(path for path in sys.path if path not in standard)]


def python_environment() -> dict[str, str]:
    """This process's environment for a Python process of ours: PYTHONPATH names the standard library first.

    Its folders are absolute: processes are started in other folders.
    """
    named = os.environ.get("PYTHONPATH")
    folders = [os.path.abspath(path) for path in (named or "").split(os.pathsep)]
    first = {} if named is None else {"PYTHONPATH": os.pathsep.join([*standard_library(), *folders])}
    return {**os.environ, **first}


def usable_cores() -> int:
    """The cores that this process may use, which are fewer than the machine's where it was given a part of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
