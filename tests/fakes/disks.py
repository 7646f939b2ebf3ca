"""A small disk of a test's own that can be filled and emptied."""

from __future__ import annotations

import subprocess
from pathlib import Path

SIZE = 2**20


class SmallDisk:
    """A megabyte of memory as a file system, mounted at a folder. Raises PermissionError where none may be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PermissionError(f"nothing can be mounted at {folder}") from error

    def fill(self) -> None:
        """Leaves no room on it."""
        try:
            self._filler.write_bytes(bytes(2 * SIZE))
        except OSError:
            return
        raise AssertionError(f"{self.folder} is larger than it should be")

    def empty(self) -> None:
        """Makes room again."""
        self._filler.write_bytes(b"")

    def protect(self) -> None:
        """Lets nothing be written to it any more."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True, capture_output=True)

    def close(self) -> None:
        """Takes it away; a write that was just refused may still hold its file, and goes on to its end."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)
