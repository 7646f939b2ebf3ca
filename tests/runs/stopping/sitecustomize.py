"""Stops a process in the middle of writing a file, for a test to kill it there.

Python imports this where its folder is on PYTHONPATH. The first process that syncs a file whose name matches STOP_AT
writes its id to STOP_NOTE and goes no further: the content is on its way to the disk, the file has not its name yet.
"""

from __future__ import annotations

import os
import re
from time import sleep

_sync = os.fsync


def _sync_or_stop(descriptor: int) -> None:
    if re.search(os.environ["STOP_AT"], os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))):
        try:
            with open(os.environ["STOP_NOTE"], "x") as note:
                note.write(str(os.getpid()))
        except FileExistsError:
            pass
        else:
            # This is longer than the timeout of any test
            sleep(3600)
    _sync(descriptor)


if "STOP_AT" in os.environ:
    os.fsync = _sync_or_stop
