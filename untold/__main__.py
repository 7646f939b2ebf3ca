"""The command `untold`, and `python -m untold` for environments that install no scripts."""

import os
import sys

from untold.udfs.python_path import prefer_standard_library


def main() -> int:
    """Runs the command of `sys.argv` and gives its exit code."""
    prefer_standard_library()
    # Arrow's other allocators keep what was read once: of the ids of a million requests, 60 MB to the end of a run
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from untold.jobs.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
