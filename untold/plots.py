"""Plot one or several runs as Matplotlib figures."""

from untold.udfs.errors import require

require("untold.plots", "notebook", "matplotlib", "networkx")

from untold.jobs.plots import (  # noqa: E402
    Picture,
    agreement,
    costs,
    differences,
    distribution,
    left_out,
    match_rates,
    means,
    statuses,
    trend,
)

__all__ = [
    "Picture",
    "agreement",
    "costs",
    "differences",
    "distribution",
    "left_out",
    "match_rates",
    "means",
    "statuses",
    "trend",
]
