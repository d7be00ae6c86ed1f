"""95 % confidence intervals for the mean of a metric over people.

The method is a bootstrap over people, or a normal approximation for more than `MANY` people. As
many people as were tested are drawn from them with replacement, 2,000 times. The interval is the
middle 95 % of the means of these draws. Two artificial people are added to the tested people.
Without them, an interval would have length 0 if all values are equal, and would be too short if
hits are rare or people few. The more people are tested, the closer the artificial people are to
them. Two recommenders are compared person by person. In a mean over random seeds, a person who is
tested under several seeds counts as one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from privrec.evaluation.metrics import KS
from privrec.seeds import rng
from privrec.types import F32, F64, IntArray

Interval = tuple[float, float]
Sample = tuple[IntArray, F64]
"""The numbers of the people tested under one seed, and the values of each person."""
REPLICATES = 2000
MANY = 2000
"""Above this number of people, the normal approximation is used. Chosen by hand: for shares of 0.02
its ends differ from those of the bootstrap by less than a tenth of the interval's length."""
_Z = 1.959964
"""95 % of a normal distribution is within this many standard deviations of the mean."""
_FEW = 30
"""With this many tested people, the artificial people are half-way between the smallest or largest
value and the end of the scale. Chosen by hand, on simulated people (docs/evaluation.md): with 15,
intervals are too short if few people have hits; with 100, too long if all people are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of a mean to another mean, or to 0, with the 95 % interval `low` to `high`."""

    by: float
    low: float
    high: float


Differences = Mapping[str, Mapping[int, Difference]]
"""Differences by the name of the compared recommender, and by k."""


def intervals(figures: F64) -> dict[int, Interval]:
    """Return for each k the interval of the mean over people, for values in [0, 1].

    `figures` has shape (people, len(KS)). People with NaN are left out; without people, the result
    is empty.
    """
    known = figures[~np.isnan(figures).any(axis=1)]
    if not len(known):
        return {}
    low, high = ends_of_shares(known)
    return dict(zip(KS, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def differences(ours: F64, theirs: F64) -> dict[int, Difference]:
    """Return for each k the mean of `ours` - `theirs`, for the same people in the same order.

    People with NaN in one of the two are left out; without people, the result is empty.
    """
    each = ours - theirs
    each = each[~np.isnan(each).any(axis=1)]
    if not len(each):
        return {}
    return _by_k(each.mean(axis=0), ends_of_differences(each))


def shares_of_seeds(samples: Sequence[Sample]) -> dict[int, Difference]:
    """Return for each k the mean over seeds with its interval, for values in [0, 1]."""
    figures = np.concatenate([figures for _, figures in samples])
    if len(samples) == 1:
        return _by_k(figures.mean(axis=0), ends_of_shares(figures))
    people = len(np.unique(np.concatenate([ids for ids, _ in samples])))
    mean, (low, high) = _ends_of_seeds(samples, *_made_up(figures, people))
    return _by_k(mean, (np.maximum(low, 0.0), np.minimum(high, 1.0)))


def differences_of_seeds(samples: Sequence[Sample]) -> dict[int, Difference]:
    """Return for each k the mean of differences over seeds, with its interval."""
    each = np.concatenate([figures for _, figures in samples])
    if len(samples) == 1:
        return _by_k(each.mean(axis=0), ends_of_differences(each))
    usual = _usual(each)
    return _by_k(*_ends_of_seeds(samples, -usual, usual))


def ends_of_shares(figures: F64) -> tuple[F64, F64]:
    """Return both ends of the interval of each column's mean over people, for values in [0, 1]."""
    low, high = _ends(figures, *_made_up(figures, len(figures)))
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def ends_of_differences(each: F64) -> tuple[F64, F64]:
    """Return both ends of the interval of each column's mean difference over people.

    The two artificial people have differences of the same size and opposite signs.
    """
    usual = _usual(each)
    return _ends(each, -usual, usual)


def intervals_of_means(figures: F64) -> dict[int, Interval]:
    """Return for each k the interval of the mean over people, for values of any size.

    People with NaN are left out; without people, the result is empty.
    """
    return intervals_of_ratios(figures, np.ones_like(figures))


def intervals_of_ratios(parts: F64, wholes: F64) -> dict[int, Interval]:
    """Return for each k the interval of Σ part / Σ whole over people; no entry if Σ whole is 0.

    The ratio is linearised: each person's value is (part - ratio · whole) / mean whole. These
    values have mean 0, and a change of the ratio changes their mean by the same amount.
    """
    known = ~(np.isnan(parts) | np.isnan(wholes)).any(axis=1)
    if not known.any():
        return {}
    part, whole = parts[known], wholes[known]
    mean = whole.mean(axis=0)
    some = np.where(mean > 0, mean, 1.0)
    ratio = part.mean(axis=0) / some
    low, high = ends_of_differences((part - ratio * whole) / some)
    ends = zip(KS, mean, (ratio + low).tolist(), (ratio + high).tolist(), strict=True)
    return {k: (left, right) for k, there, left, right in ends if there > 0}


def apart(ours: Difference, theirs: Difference) -> Difference:
    """Return the difference of two means over different people, with its interval."""
    down = math.hypot(ours.by - ours.low, theirs.high - theirs.by)
    up = math.hypot(ours.high - ours.by, theirs.by - theirs.low)
    by = ours.by - theirs.by
    return Difference(by=by, low=by - down, high=by + up)


def mean_of(parts: Sequence[Difference]) -> Difference:
    """Return the mean of differences if the people behind each difference are unknown.

    They may be the same people, so the mean's interval is as long as the differences' on average.
    """
    by, low, high = (
        math.fsum(getattr(part, name) for part in parts) / len(parts)
        for name in ("by", "low", "high")
    )
    return Difference(by=by, low=low, high=high)


OfRuns = Sequence["People | None"]
"""The people of one run for each seed, or None if the values of each person are unknown."""


class People(NamedTuple):
    """The numbers of people, and the values of each person, shape (people, len(KS)).

    `references` has the same people's Hits@k by each reference recommender. `digest` is a hash of
    the tested people, items and candidates, or "" if it is unknown.
    """

    ids: IntArray
    hits: F64
    new_only: F64
    digest: str = ""
    references: Mapping[str, F64] = {}


def are_paired(ours: People | None, theirs: People | None) -> bool:
    """Return whether the same people were tested on the same items; false if that is unknown."""
    return bool(ours and theirs and ours.digest and ours.digest == theirs.digest)


def mean_hits(runs: OfRuns, reference: str | None = None) -> dict[int, Difference] | None:
    """Return the mean over seeds of Hits@k, or of a reference's Hits@k, with its interval.

    Return None if a seed lacks the values of each person.
    """
    samples: list[Sample] = []
    for run in runs:
        if run is None or (reference is not None and reference not in run.references):
            return None
        samples.append((run.ids, run.hits if reference is None else run.references[reference]))
    return shares_of_seeds(samples)


def mean_above(runs: OfRuns, reference: str) -> dict[int, Difference] | None:
    """Return the mean over seeds of Hits@k minus the reference's Hits@k, paired by person.

    Return None if a seed lacks the values of each person.
    """
    samples: list[Sample] = []
    for run in runs:
        if run is None or reference not in run.references:
            return None
        samples.append((run.ids, run.hits - run.references[reference]))
    return differences_of_seeds(samples)


def mean_difference(ours: OfRuns, theirs: OfRuns) -> dict[int, Difference] | None:
    """Return the mean over seeds of the difference in Hits@k, paired by person under each seed.

    Return None unless the same people were tested on the same items under each seed.
    """
    samples: list[Sample] = []
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None or other is None or not are_paired(mine, other):
            return None
        if len(ours) == 1:
            return differences(mine.hits, other.hits)
        samples.append((mine.ids, mine.hits - other.hits))
    return differences_of_seeds(samples)


def distinct(runs: OfRuns) -> int | None:
    """Return the number of different people tested under any seed; None if it is unknown."""
    known = [run.ids for run in runs if run is not None]
    return len(np.unique(np.concatenate(known))) if len(known) == len(runs) else None


def _by_k(mean: F64, ends: tuple[F64, F64]) -> dict[int, Difference]:
    low, high = ends
    columns = zip(KS, mean.tolist(), low.tolist(), high.tolist(), strict=True)
    return {k: Difference(by=by, low=left, high=right) for k, by, left, right in columns}


def _made_up(figures: F64, people: int) -> tuple[F64, F64]:
    """Return the values of the two artificial people: one below and one above all tested people.

    The lower value is between 0 and the smallest value, the upper value between the largest value
    and 1. With fewer tested people, they are nearer to 0 and 1. If all people have the same value,
    such as no hit, the spread is unknown, and 0 and 1 take the place of the smallest and largest
    value.
    """
    far = _FEW / (_FEW + people)
    least, most = figures.min(axis=0), figures.max(axis=0)
    least, most = np.where(least < most, (least, most), ([0.0], [1.0]))
    return least * (1 - far), most + (1 - most) * far


def _usual(each: F64) -> F64:
    """Return the size of the two artificial people's differences: 1 if all differences are 0.

    Otherwise it is the mean size of the differences that are not 0, or two standard deviations if
    that is more. For normal differences of 20 or 100 people, two standard deviations give an
    interval as long as Student's.
    """
    count = (each != 0).sum(axis=0)
    mean = np.abs(each).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, np.maximum(mean, 2 * each.std(axis=0)), 1.0)


def _ends_of_seeds(samples: Sequence[Sample], less: F64, more: F64) -> tuple[F64, tuple[F64, F64]]:
    """Return the mean over S seeds, and the ends of its interval, with one row per person.

    Let x_s be a person's value under seed s, n_s the number of people and m the mean. A person's
    row is the sum of (x_s - m) / n_s / S over the seeds under which she is tested. Rows of
    different people are independent, so the variance of m is the sum of their squares. An
    artificial person has the weight of an average person: her share of seeds is the mean share of
    the tested people.
    """
    whose = np.unique(np.concatenate([ids for ids, _ in samples]), return_inverse=True)[1]
    people, seeds = int(whose.max()) + 1, len(samples)
    share = len(whose) / people / seeds
    sizes = [len(ids) + 2 * share for ids, _ in samples]
    weight = np.concatenate(
        [np.full(len(ids), 1 / size) for (ids, _), size in zip(samples, sizes, strict=True)]
    )
    figures = np.concatenate([figures for _, figures in samples])
    made_up = sum(share / size for size in sizes)
    middle = (weight @ figures + made_up * (less + more)) / seeds
    rows = np.zeros((people + 2, figures.shape[1]))
    np.add.at(rows, whose, weight[:, None] * (figures - middle))
    rows[-2:] = made_up * (np.stack([less, more]) - middle)
    half = _Z * np.sqrt((rows**2).sum(axis=0)) / seeds
    mean = np.mean([under_seed.mean(axis=0) for _, under_seed in samples], axis=0)
    return mean, (np.minimum(middle - half, mean), np.maximum(middle + half, mean))


def _ends(values: F64, less: F64, more: F64) -> tuple[F64, F64]:
    """Return the interval of each column's mean, with artificial rows `less` and `more`."""
    all_of_them = np.concatenate([values, less[None], more[None]])
    people, mean = len(all_of_them), values.mean(axis=0)
    if people > MANY:
        middle = all_of_them.mean(axis=0)
        half = _Z * all_of_them.std(axis=0) / math.sqrt(people)
        low, high = middle - half, middle + half
    else:
        drawn = _counts(people) @ all_of_them / people
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    # With very few people, the artificial rows could move the interval away from the mean.
    return np.minimum(low, mean), np.maximum(high, mean)


@lru_cache(maxsize=4)
def _counts(people: int) -> F32:
    """Return how often each of `people` is in each draw, shape (REPLICATES, people).

    Equal values have equal intervals, because the draws depend on the number of people alone.
    """
    drawn = rng(0, people, "interval").integers(people, size=(REPLICATES, people))
    drawn += people * np.arange(REPLICATES)[:, None]
    counts = np.bincount(drawn.reshape(-1), minlength=REPLICATES * people)
    return counts.reshape(REPLICATES, people).astype(np.float32)
