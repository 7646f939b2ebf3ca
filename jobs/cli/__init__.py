"""Provide the command `untold`."""

from untold.jobs.cli.main import main as main
