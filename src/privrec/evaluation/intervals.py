"""How far a mean over people may be from the mean over all people like them: 95 % intervals.

There is one way, a bootstrap over people: people are drawn again, as many, from those who were
tested, and the middle 95 % of the means of 2,000 such draws is the interval. Two made-up people are
among them. Without them, an interval would be empty where all figures are the same, and too short
where hits are rare or people few. Above `MANY` people the means of draws are normal, and their
standard deviation is known without drawing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from privrec.evaluation.metrics import KS
from privrec.seeds import rng

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
REPLICATES = 2000
MANY = 2000
"""From so many people on, the normal approximation is used. Chosen by hand: for shares of 0.02 its
ends differ from the bootstrap's by less than a tenth of the interval's length."""
_Z = 1.959964
"""Of a normal variable, 95 % lies within so many standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean is larger than another one, or than 0, `by` so much; 95 % interval `low` to `high`."""

    by: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Return the difference as `evaluation.json` has it."""
        return {"by": self.by, "low": self.low, "high": self.high}


Differences = Mapping[str, Mapping[int, Difference]]
"""By the name of what is compared with, and by k."""


def intervals(figures: Floats) -> dict[int, Interval]:
    """Return for each k the interval of the mean over people, each with a figure in [0, 1].

    `figures` has shape (people, len(KS)). People whose figures are NaN are left out; empty if
    nobody is left.
    """
    known = figures[~np.isnan(figures).any(axis=1)]
    if not len(known):
        return {}
    low, high = ends_of_shares(known)
    return dict(zip(KS, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def differences(ours: Floats, theirs: Floats) -> dict[int, Difference]:
    """Return for each k by how much our mean is larger, paired: the same people in both, in order.

    People who have no figure in one of them are left out; empty if nobody is left.
    """
    each = ours - theirs
    each = each[~np.isnan(each).any(axis=1)]
    if not len(each):
        return {}
    found = zip(KS, each.mean(axis=0), *ends_of_differences(each), strict=True)
    return {k: Difference(by=float(by), low=float(a), high=float(b)) for k, by, a, b in found}


def ends_of_shares(figures: Floats) -> tuple[Floats, Floats]:
    """Return the lower and upper ends for the mean of each column, over people in the rows.

    Figures lie in [0, 1]. The two made-up people have the figures 0 and 1.
    """
    zeros = np.zeros(figures.shape[1])
    low, high = _ends(figures, zeros, zeros + 1)
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def ends_of_differences(each: Floats) -> tuple[Floats, Floats]:
    """Return the lower and upper ends for the mean of each column, over people in the rows.

    The two made-up people differ by plus and minus what those who differ at all differ by on
    average, or by 1 if nobody does.
    """
    count = (each != 0).sum(axis=0)
    usual = np.where(count > 0, np.abs(each).sum(axis=0) / np.maximum(count, 1), 1.0)
    return _ends(each, -usual, usual)


def apart(ours: Difference, theirs: Difference) -> Difference:
    """Return by how much our mean is larger than one over other people; both are mean and ends."""
    down = math.hypot(ours.by - ours.low, theirs.high - theirs.by)
    up = math.hypot(ours.high - ours.by, theirs.by - theirs.low)
    by = ours.by - theirs.by
    return Difference(by=by, low=by - down, high=by + up)


def mean_of(found: Sequence[Difference]) -> Difference:
    """Return the mean of differences that were found on samples of their own.

    Of independent samples the squares of distances to the ends add up.
    """
    count = len(found)
    by = math.fsum(one.by for one in found) / count
    down = math.hypot(*(one.by - one.low for one in found)) / count
    up = math.hypot(*(one.high - one.by for one in found)) / count
    return Difference(by=by, low=by - down, high=by + up)


def _ends(values: Floats, less: Floats, more: Floats) -> tuple[Floats, Floats]:
    """Return the ends for the mean of each column, with two made-up rows `less` and `more`."""
    all_of_them = np.concatenate([values, less[None], more[None]])
    people, mean = len(all_of_them), values.mean(axis=0)
    if people > MANY:
        middle = all_of_them.mean(axis=0)
        half = _Z * all_of_them.std(axis=0) / math.sqrt(people)
        low, high = middle - half, middle + half
    else:
        drawn = _counts(people) @ all_of_them / people
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    # With very few people the made-up ones could push the mean itself out.
    return np.minimum(low, mean), np.maximum(high, mean)


@lru_cache(maxsize=4)
def _counts(people: int) -> npt.NDArray[np.float32]:
    """Return how often each of `people` is in each draw, shape (REPLICATES, people).

    It depends on the number of people alone, so that the same figures have the same interval.
    """
    drawn = rng(0, people, "interval").integers(people, size=(REPLICATES, people))
    drawn += people * np.arange(REPLICATES)[:, None]
    counts = np.bincount(drawn.reshape(-1), minlength=REPLICATES * people)
    return counts.reshape(REPLICATES, people).astype(np.float32)
