"""PySpark's daemon on one machine: what most tasks import it has imported before it forks their workers.

A small run has up to six of them, and each took 1.4 s of processor time to import pandas, Arrow and how stages read.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401  (as soon as Arrow makes an array)
from pyspark.daemon import manager

import untold.udfs.stages.arrow  # noqa: F401

if __name__ == "__main__":
    # Else each worker's first collection would copy the pages that it shares with the daemon
    gc.collect()
    gc.freeze()
    manager()
