"""How far a mean over people may be from the mean over all people like them: 95 % intervals.

There is one way, a bootstrap over people: people are drawn again, as many, from those who were
tested, and the middle 95 % of the means of 2,000 such draws is the interval. Two made-up people are
among them. Without them, an interval would be empty where all figures are the same, and too short
where hits are rare or people few. The more people were tested, the less the made-up ones differ
from them. Above `MANY` people the means of draws are normal, and their standard deviation is known
without drawing. Two recommenders are compared person by person; means over seeds count a person who
is tested under several seeds once.
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
"""The numbers of the people who were tested under one seed, and the figures of each."""
REPLICATES = 2000
MANY = 2000
"""From so many people on, the normal approximation is used. Chosen by hand: for shares of 0.02 its
ends differ from the bootstrap's by less than a tenth of the interval's length."""
_Z = 1.959964
"""Of a normal variable, 95 % lies within so many standard deviations."""
_FEW = 30
"""Where so many people are tested, the made-up ones are half-way between the best and the worst of
them and the ends of the scale. Chosen by hand, on drawn people (docs/evaluation.md): with 15,
intervals are too short where few people have hits; with 100, too long where all are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean is larger than another one, or than 0, `by` so much; 95 % interval `low` to `high`."""

    by: float
    low: float
    high: float


Differences = Mapping[str, Mapping[int, Difference]]
"""By the name of what is compared with, and by k."""


def intervals(figures: F64) -> dict[int, Interval]:
    """Return for each k the interval of the mean over people, each with a figure in [0, 1].

    `figures` has shape (people, len(KS)). People whose figures are NaN are left out; empty if
    nobody is left.
    """
    known = figures[~np.isnan(figures).any(axis=1)]
    if not len(known):
        return {}
    low, high = ends_of_shares(known)
    return dict(zip(KS, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def differences(ours: F64, theirs: F64) -> dict[int, Difference]:
    """Return for each k by how much our mean is larger, paired: the same people in both, in order.

    People who have no figure in one of them are left out; empty if nobody is left.
    """
    each = ours - theirs
    each = each[~np.isnan(each).any(axis=1)]
    if not len(each):
        return {}
    return _by_k(each.mean(axis=0), ends_of_differences(each))


def shares_of_seeds(samples: Sequence[Sample]) -> dict[int, Difference]:
    """Return for each k the mean over seeds and its ends, of figures in [0, 1].

    A person may be tested under several seeds.
    """
    figures = np.concatenate([figures for _, figures in samples])
    if len(samples) == 1:
        return _by_k(figures.mean(axis=0), ends_of_shares(figures))
    people = len(np.unique(np.concatenate([ids for ids, _ in samples])))
    mean, (low, high) = _ends_of_seeds(samples, *_made_up(figures, people))
    return _by_k(mean, (np.maximum(low, 0.0), np.minimum(high, 1.0)))


def differences_of_seeds(samples: Sequence[Sample]) -> dict[int, Difference]:
    """Return for each k the mean over seeds of differences, with its ends, as above."""
    each = np.concatenate([figures for _, figures in samples])
    if len(samples) == 1:
        return _by_k(each.mean(axis=0), ends_of_differences(each))
    usual = _usual(each)
    return _by_k(*_ends_of_seeds(samples, -usual, usual))


def ends_of_shares(figures: F64) -> tuple[F64, F64]:
    """Return the lower and upper ends for the mean of each column, over people in the rows.

    Figures lie in [0, 1].
    """
    low, high = _ends(figures, *_made_up(figures, len(figures)))
    return np.maximum(low, 0.0), np.minimum(high, 1.0)


def ends_of_differences(each: F64) -> tuple[F64, F64]:
    """Return the lower and upper ends for the mean of each column, over people in the rows.

    The two made-up people are better and worse by the same.
    """
    usual = _usual(each)
    return _ends(each, -usual, usual)


def intervals_of_means(figures: F64) -> dict[int, Interval]:
    """Return for each k the interval of the mean over people, of figures of any size.

    People whose figures are NaN are left out; empty if nobody is left.
    """
    return intervals_of_ratios(figures, np.ones_like(figures))


def intervals_of_ratios(parts: F64, wholes: F64) -> dict[int, Interval]:
    """Return for each k the interval of Σ part / Σ whole over people; without k where Σ whole is 0.

    A person's row is (part - ratio · whole) / mean whole: their mean is 0, and moves as the ratio
    does.
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
    """Return the difference of two means over different people, with its interval.

    Each argument has a mean and its two ends.
    """
    down = math.hypot(ours.by - ours.low, theirs.high - theirs.by)
    up = math.hypot(ours.high - ours.by, theirs.by - theirs.low)
    by = ours.by - theirs.by
    return Difference(by=by, low=by - down, high=by + up)


def mean_of(parts: Sequence[Difference]) -> Difference:
    """Return the mean of differences where it is not known who the people of each are.

    They may be the same people, so the mean is taken to be no surer than one of them: the distances
    to the ends are means too.
    """
    by, low, high = (
        math.fsum(getattr(part, name) for part in parts) / len(parts)
        for name in ("by", "low", "high")
    )
    return Difference(by=by, low=low, high=high)


OfRuns = Sequence["People | None"]
"""The people of one run for each seed; None where their figures are not known."""


class People(NamedTuple):
    """The numbers of people and their figures, shape (people, len(KS)) each.

    `references` has the Hits@k of each reference, for the same people. `digest` says what was
    tested: it is the same where people, items and candidates are; "" if it is not known.
    """

    ids: IntArray
    hits: F64
    new_only: F64
    digest: str = ""
    references: Mapping[str, F64] = {}


def are_paired(ours: People | None, theirs: People | None) -> bool:
    """Return whether the same people were tested on the same items, as far as is known."""
    return bool(ours and theirs and ours.digest and ours.digest == theirs.digest)


def mean_hits(runs: OfRuns, reference: str | None = None) -> dict[int, Difference] | None:
    """Return the mean over seeds of Hits@k, or of a reference's, with the ends of its interval.

    None unless the figures of each person are known for all seeds.
    """
    samples: list[Sample] = []
    for run in runs:
        if run is None or (reference is not None and reference not in run.references):
            return None
        samples.append((run.ids, run.hits if reference is None else run.references[reference]))
    return shares_of_seeds(samples)


def mean_above(runs: OfRuns, reference: str) -> dict[int, Difference] | None:
    """Return by how much Hits@k is above a reference's, paired, as a mean over seeds.

    None unless the figures of each person are known for all seeds.
    """
    samples: list[Sample] = []
    for run in runs:
        if run is None or reference not in run.references:
            return None
        samples.append((run.ids, run.hits - run.references[reference]))
    return differences_of_seeds(samples)


def mean_difference(ours: OfRuns, theirs: OfRuns) -> dict[int, Difference] | None:
    """Return by how much our Hits@k is larger, paired seed by seed, as a mean over seeds.

    None unless the same people were tested on the same items under each seed.
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
    """Return how many different people were tested under some seed; None if it is not known."""
    known = [run.ids for run in runs if run is not None]
    return len(np.unique(np.concatenate(known))) if len(known) == len(runs) else None


def _by_k(mean: F64, ends: tuple[F64, F64]) -> dict[int, Difference]:
    low, high = ends
    columns = zip(KS, mean.tolist(), low.tolist(), high.tolist(), strict=True)
    return {k: Difference(by=by, low=left, high=right) for k, by, left, right in columns}


def _made_up(figures: F64, people: int) -> tuple[F64, F64]:
    """Return the figures of the two made-up people, one below and one above those of all others.

    They lie between the least and the largest figure and the ends of the scale, 0 and 1: nearer to
    the ends the fewer people were tested. Where all have the same figure, such as no hit at all, it
    does not say how far people differ, and the ends are taken.
    """
    far = _FEW / (_FEW + people)
    least, most = figures.min(axis=0), figures.max(axis=0)
    least, most = np.where(least < most, (least, most), ([0.0], [1.0]))
    return least * (1 - far), most + (1 - most) * far


def _usual(each: F64) -> F64:
    """Return by how much the two made-up people differ: 1 if nobody does.

    Otherwise it is what those who differ at all differ by on average, or two standard deviations
    if that is more. For normal differences of 20 or 100 people, two deviations make the interval as
    long as Student's.
    """
    count = (each != 0).sum(axis=0)
    mean = np.abs(each).sum(axis=0) / np.maximum(count, 1)
    return np.where(count > 0, np.maximum(mean, 2 * each.std(axis=0)), 1.0)


def _ends_of_seeds(samples: Sequence[Sample], less: F64, more: F64) -> tuple[F64, tuple[F64, F64]]:
    """Return the mean over S seeds, and its ends, with one row for each different person.

    With x_s her figure under seed s, n_s people and the mean m: her row is
    sum_s (x_s - m) / n_s / S over the seeds that test her. The rows of different people are
    independent, so the variance of m is the sum of their squares. The two made-up people weigh as
    much as a person does: they are tested under the share of the seeds that people are on average.
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
def _counts(people: int) -> F32:
    """Return how often each of `people` is in each draw, shape (REPLICATES, people).

    It depends on the number of people alone, so that the same figures have the same interval.
    """
    drawn = rng(0, people, "interval").integers(people, size=(REPLICATES, people))
    drawn += people * np.arange(REPLICATES)[:, None]
    counts = np.bincount(drawn.reshape(-1), minlength=REPLICATES * people)
    return counts.reshape(REPLICATES, people).astype(np.float32)
