"""`python -m untold.jobs.cli`: the command without its script, for environments that install none."""

import sys

from untold.jobs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
