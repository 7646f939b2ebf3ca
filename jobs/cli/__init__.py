"""The command `untold`."""

from jobs.cli.main import main as main
