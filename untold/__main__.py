"""The command `untold`, and `python -m untold` for environments that install no scripts."""

import sys

from untold.udfs.python_path import prefer_standard_library


def main() -> int:
    """Runs the command of `sys.argv` and gives its exit code."""
    prefer_standard_library()
    from untold.jobs.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
