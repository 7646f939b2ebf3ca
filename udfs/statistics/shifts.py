"""Where the level of a series of means shifts: change points by PELT, in units of the noise of the series."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri

from untold.udfs.statistics.intervals import SAME

# Points on either side of a shift: one date alone is compared with its neighbours by a test
LEAST = 2
NORMAL_MAD = 1.4826  # from the median absolute deviation to the standard deviation of a normal variable
CHANCE = 0.05


def find_shifts(means: ArrayLike, errors: ArrayLike, *, points: int) -> list[int]:
    """The places at which a new level begins, ascending; none among fewer than four means.

    means: float64[n] in the order of time; errors: float64[n - 1], the standard error of each mean less the one before;
    points: how many means the family of series has, so that noise alone gives a shift in about `CHANCE` of all families
    at most. Noise is the larger of what the errors say and of what the steps themselves show. PELT: Killick, Fearnhead
    and Eckley 2012, by `ruptures`.

    >>> find_shifts([0.8, 0.81, 0.8, 0.6, 0.59, 0.6], [0.01] * 5, points=6)
    [3]
    """
    values = np.asarray(means, dtype=np.float64)
    steps = np.abs(np.diff(values))
    if values.size < 2 * LEAST or not steps.any():
        return []
    # Here, as it takes a second, which few commands need
    from ruptures import KernelCPD

    seen = NORMAL_MAD * float(np.median(steps))
    expected = float(np.median(np.asarray(errors, dtype=np.float64)))
    noise = max(seen, expected, SAME * float(steps.max())) / np.sqrt(2)
    # The linear kernel has the cost of squared distances, by PELT in C
    search = KernelCPD(kernel="linear", min_size=LEAST).fit(values / noise)
    return [int(place) for place in search.predict(pen=float(chdtri(1, CHANCE / points)))[:-1]]
