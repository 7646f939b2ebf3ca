"""Run the command line: `python -m untold`."""

import os
import sys

from untold.udfs.python_path import prefer_standard_library


def main() -> int:
    """Run the command of `sys.argv` and return its exit code."""
    prefer_standard_library()
    # Arrow's own allocator does not return memory: 60 MB for the ids of a million requests
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from untold.jobs.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
