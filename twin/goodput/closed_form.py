"""What is known in closed form, where its assumptions hold.

Failures are exponential with one mean time between them, checkpoints are synchronous and equally
far apart, a failure costs a restart of fixed length and all work since the last checkpoint.

* J. W. Young, CACM 17 (1974); J. T. Daly, FGCS 22 (2006), doi 10.1016/j.future.2004.11.016.
"""

from __future__ import annotations

import math

HOPELESS = 600.0
"""So many mean times between failures pass without one never."""


def young(write_seconds: float, between_seconds: float) -> float:
    """Young's interval: work between two checkpoints that loses least, to first order.

    >>> round(young(60.0, 3 * 3600.0))
    1138
    """
    return math.sqrt(2.0 * write_seconds * between_seconds)


def daly(write_seconds: float, between_seconds: float) -> float:
    """Daly's interval, of higher order; the mean time between failures if writing takes longer than twice that.

    >>> round(daly(60.0, 3 * 3600.0))
    1099
    """
    if write_seconds >= 2.0 * between_seconds:
        return between_seconds
    ratio = math.sqrt(write_seconds / (2.0 * between_seconds))
    return young(write_seconds, between_seconds) * (1.0 + ratio / 3.0 + ratio**2 / 9.0) - write_seconds


def goodput(interval_seconds: float, write_seconds: float, restart_seconds: float, between_seconds: float) -> float:
    """Share of time that is useful, exactly: Daly's expected time of one interval.

    Failures may come during writing and restarting too.

    >>> round(goodput(1098.0, 60.0, 300.0, 3 * 3600.0), 4)
    0.8737
    """
    mean = between_seconds
    if not math.isfinite(mean):
        return interval_seconds / (interval_seconds + write_seconds)
    if (restart_seconds + interval_seconds + write_seconds) / mean > HOPELESS:
        return 0.0
    wanted = (interval_seconds + write_seconds) / mean
    return interval_seconds / (mean * math.exp(restart_seconds / mean) * math.expm1(wanted))
