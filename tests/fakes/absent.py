"""Run a command as if some modules were not installed: `python absent.py NAME,NAME untold ...`."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any


class _Without:
    """A finder that returns no hidden module."""

    def __init__(self, finder: Any, names: Collection[str]) -> None:
        self._finder, self._names = finder, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return None for a hidden module."""
        return None if name.partition(".")[0] in self._names else self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(names: Collection[str]) -> None:
    """Hide top-level modules by name, before an import of one."""
    assert not set(names) & set(sys.modules)
    sys.meta_path[:] = [_Without(finder, names) for finder in sys.meta_path]


if __name__ == "__main__":
    hide(sys.argv[1].split(","))
    from untold.__main__ import main

    sys.argv = sys.argv[2:]
    sys.exit(main())
