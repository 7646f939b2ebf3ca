"""A small disk for a test, which can be filled and emptied."""

from __future__ import annotations

import subprocess
from pathlib import Path

SIZE = 2**20


class SmallDisk:
    """A megabyte of memory as a file system, mounted at a folder. Raises PermissionError if mounting is not allowed."""

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
        """Fill the disk."""
        try:
            self._filler.write_bytes(bytes(2 * SIZE))
        except OSError:
            return
        raise AssertionError(f"{self.folder} is larger than it should be")

    def empty(self) -> None:
        """Free space on the disk."""
        self._filler.write_bytes(b"")

    def protect(self) -> None:
        """Make the disk read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True, capture_output=True)

    def close(self) -> None:
        """Unmount the disk. A refused write may still hold its file open until it ends."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, capture_output=True)
