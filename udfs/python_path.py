"""The import path and the usable cores of a Python process. Imports no library."""

from __future__ import annotations

import os
import sys


def standard_library() -> list[str]:
    """Return the folders of the standard library, in the order of `sys.path`."""
    library = os.path.dirname(os.__file__)
    return [path for path in sys.path if path.startswith(library) and "-packages" not in path]


def prefer_standard_library() -> None:
    """Put the standard library first in `sys.path`, and remove the working directory that `python -m` adds."""
    standard = standard_library()
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    sys.path[:] = [*standard, *(path for path in sys.path if path not in standard)]


def python_environment() -> dict[str, str]:
    """Return the environment for a child process, with the standard library first in PYTHONPATH.

    The folders are absolute, because a child process can start in another folder.
    """
    named = os.environ.get("PYTHONPATH")
    folders = [os.path.abspath(path) for path in (named or "").split(os.pathsep)]
    first = {} if named is None else {"PYTHONPATH": os.pathsep.join([*standard_library(), *folders])}
    return {**os.environ, **first}


def usable_cores() -> int:
    """Return the number of cores that this process can use, at most the number of cores of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
