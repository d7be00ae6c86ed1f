"""Mistakes in who was drawn: cohorts that are not what the ledger says, or not independent.

The ledger counts on each person being drawn independently of all others and of all rounds. So
people who are drawn in blocks, a cohort that is drawn again, and one that avoids those of the
rounds before break the guarantee, though everybody has the right chance.

The second half has the laws of independent draws: exact ones, and bounds that always hold. A
finding must be far beyond chance, so a normal approximation is not enough: it is wrong by orders of
magnitude at a chance of 1e-12.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import stats
from scipy.special import logsumexp, rel_entr

from privrec.attacks.watch import WatchedRound, by_phase
from privrec.seeds import rng
from privrec.types import F64, BoolArray, IntArray

_CHANCE = 1e-9
"""Of each kind of finding in a right run: the sum over all rounds, people or pairs of them."""
_MOST, _PAIRED = 20_000, 4000
"""Of more people, the first and the last ones are looked at; every two of some are compared."""


def too_many(rounds: Sequence[WatchedRound]) -> list[str]:
    """Return the phases that drew somebody twice in a round, or more people than are counted."""
    findings = []
    for name, played in by_phase(rounds).items():
        phase, cohorts = played[0].phase, [each.people for each in played]
        if any(len(np.unique(people)) < len(people) for people in cohorts):
            findings.append(f"{name}: somebody was drawn twice in one round")
        sampling, total = phase.release.sampling, sum(map(len, cohorts))
        asked = len(phase.population) * len(played)
        fixed = sampling.law == "fixed"
        chance = 1.0 if fixed else stats.binom.sf(total - 1, asked, sampling.share)
        if chance < _CHANCE or (fixed and total > sampling.cohort * len(played)):
            findings.append(
                f"{name}: {total / len(played):.4g} people were drawn for a round, and the ledger"
                f" counts {asked * sampling.share / len(played):.4g}"
            )
    return findings


def drawn_together(rounds: Sequence[WatchedRound]) -> list[str]:
    """Return the phases in which people, or rounds, were not drawn independently of each other.

    Of Poisson cohorts, the numbers of people must spread as coin tosses do, and so must the numbers
    of rounds that people were in; no two people may have been in the same rounds more often than
    by chance. Of all cohorts, people at any distance from each other in the order of the data must
    not be drawn together.
    """
    findings = []
    for name, played in by_phase(rounds).items():
        sampling, users = played[0].phase.release.sampling, len(played[0].phase.population)
        if sampling.share >= 1:
            continue
        drawn, sizes = _drawn(played), np.array([len(np.unique(each.people)) for each in played])
        faults = [_neighbours(drawn, sampling.share)]
        if sampling.law == "poisson":
            faults += [
                _spread(sizes, users, sampling.share, "people in a round"),
                _spread(drawn.sum(0), len(played), sampling.share, "rounds of a person"),
                _same_rounds(drawn),
            ]
        findings += [f"{name}: {fault}" for fault in faults if fault]
    return findings


def drawn_again(rounds: Sequence[WatchedRound]) -> list[str]:
    """Return rounds whose people are, or are not, those of another round far more than by chance.

    Compared are any two rounds, of whatever phase, that draw from the same people, and all rounds
    in a row together.
    """
    groups: dict[bytes, list[WatchedRound]] = defaultdict(list)
    for played in by_phase(rounds).values():
        if played[0].phase.release.sampling.share < 1:
            groups[played[0].phase.population.tobytes()] += played
    findings = []
    for played in groups.values():
        drawn = _drawn(played)
        if fault := _same_people(played, drawn) or _in_a_row(played, drawn):
            findings.append(fault)
    return findings


def _same_people(rounds: Sequence[WatchedRound], drawn: BoolArray) -> str:
    """Return a finding if two rounds have too many people in common."""
    sizes, wide = drawn.sum(1), drawn.astype(np.float32)
    pairs = len(rounds) * (len(rounds) - 1) / 2
    for second in range(1, len(rounds)):
        common = (wide[:second] @ wide[second]).astype(np.int64)
        chances = in_common(drawn.shape[1], int(sizes[second]), sizes[:second], common)
        first = int(np.argmin(chances))
        if chances[first] * pairs < _CHANCE:
            expected = sizes[first] * sizes[second] / drawn.shape[1]
            return (
                f"{rounds[second].name}: {common[first]} of {sizes[second]} people were in"
                f" {rounds[first].name} too; {expected:.0f} are expected"
            )
    return ""


def _in_a_row(rounds: Sequence[WatchedRound], drawn: BoolArray) -> str:
    """Return a finding if rounds in a row have too many, or too few, people in common."""
    users, sizes = drawn.shape[1], drawn.sum(1).tolist()
    kinds = Counter(pairwise(sizes))
    laws = [(common_law(users, *sizes), count) for sizes, count in kinds.items()]
    common = int((drawn[1:] & drawn[:-1]).sum())
    if not laws or min(tails(laws, common)) * 2 >= _CHANCE:
        return ""
    expected = sum(count * first * next_ / users for (first, next_), count in kinds.items())
    return (
        f"{rounds[0].name} to {rounds[-1].name}: rounds in a row have {common} people in common;"
        f" {expected:.0f} are expected"
    )


def _spread(counts: np.ndarray, trials: int, share: float, what: str) -> str:
    """Return a finding if counts of heads among so many coins spread too much or too little."""
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    total = float(np.square(counts - mean).sum()) / variance
    more, less = tails([(binomial_squares(trials, share), len(counts))], total)
    if 2 * min(more, less) >= _CHANCE:
        return ""
    times = total / len(counts)
    return f"the numbers of {what} spread {times:.3g} times as much as independent draws do"


def _same_rounds(drawn: BoolArray) -> str:
    """Return a finding if too many people were in exactly the same rounds as somebody else.

    Those who were in k of n rounds each have one of `n over k` equally likely histories.
    """
    some = rng(0, 0, "audited people").permutation(drawn.shape[1])[:_PAIRED]
    histories, people = np.unique(drawn[:, some], axis=1, return_counts=True)
    rounds = histories.sum(0)
    for number in np.unique(rounds).tolist():
        of_these = people[rounds == number]
        many = float(min(math.comb(len(drawn), number), 10**300))
        total = int(of_these.sum())
        if few_places(total, many, len(of_these)) * (len(drawn) + 1) < _CHANCE:
            return (
                f"{total} people were in {number} of {len(drawn)} rounds each, and only"
                f" {len(of_these)} of them in different ones: some are drawn together"
            )
    return ""


def _neighbours(drawn: BoolArray, share: float) -> str:
    """Return a finding if people at some distance in the order of the data are drawn together.

    Pairs at one distance fall into two halves in which nobody is in two pairs. Where most people
    are drawn, those who are not are looked at.
    """
    chance, (rounds, people) = min(share, 1 - share) ** 2, drawn.shape
    spectrum = np.zeros(people + 1)
    for row in drawn if share <= 0.5 else ~drawn:
        spectrum += np.abs(np.fft.rfft(row, 2 * people)) ** 2
    pairs = np.fft.irfft(spectrum)[1 : people // 2 + 1]
    if not len(pairs):
        return ""
    most, at = round(float(pairs.max())), int(np.argmax(pairs)) + 1
    trials = math.ceil(rounds * people / 2)
    if 2 * len(pairs) * share_bound(trials, chance, most / 2) >= _CHANCE:
        return ""
    what = "drawn" if share <= 0.5 else "left out"
    return (
        f"people {at} places apart were {what} together {most} times;"
        f" {chance * rounds * (people - at):.0f} are expected"
    )


def _drawn(rounds: Sequence[WatchedRound]) -> BoolArray:
    """Return who of the population was drawn in which round, shape (rounds, people)."""
    population, half = rounds[0].phase.population, _MOST // 2
    if len(population) > _MOST:
        population = np.concatenate([population[:half], population[-half:]])
    return np.stack([np.isin(population, each.people) for each in rounds])


ChanceLaw = tuple[F64, F64]
"""Values, and the logarithm of the chance of each."""
_SLOPES = np.geomspace(1e-4, 1e2, 60)
"""Slopes at which a bound is tried, relative to one deviation."""
_FAR = 40.0
"""Values more deviations away have a chance of 0 in floating point."""


def few_places(balls: int, places: float, hit: int) -> float:
    """Return the chance that balls thrown into equally likely places hit at most `hit` of them.

    >>> few_places(3, 2, 1)
    0.25
    """
    return float(_places_hit(balls, places)[: hit + 1].sum())


@lru_cache(maxsize=512)
def _places_hit(balls: int, places: float) -> F64:
    """Return the chance of each number of places that are hit, shape (balls + 1,)."""
    numbers = np.arange(balls + 1)
    again, new = numbers / places, (places - numbers) / places
    law = np.zeros(balls + 1)
    law[0] = 1.0
    for _ in range(balls):
        law[1:] = law[1:] * again[1:] + law[:-1] * new[:-1]
        law[0] = 0.0
    return law


def in_common(size: int, first: int, second: IntArray, common: IntArray) -> F64:
    """Return the chance of so many common members of two random parts of `size` things, or more.

    It is 1 for a number that is not far from the expected one.

    >>> [f"{chance:.1e}" for chance in in_common(100, 20, np.array([20, 20]), np.array([5, 20]))]
    ['1.0e+00', '1.9e-21']
    """
    chances = np.ones(len(common))
    deviation = np.sqrt(first * second / max(size, 1) + 1)
    # The exact law is slow, and nearly all pairs are far from being found.
    far = np.flatnonzero(common > first * second / max(size, 1) + 3 * deviation)
    chances[far] = stats.hypergeom.sf(common[far] - 1, size, first, second[far])
    return chances


def share_bound(trials: int, share: float, hits: float) -> float:
    """Return a bound on the chance of at least so many hits (Chernoff's).

    It holds for independent trials, and for negatively associated ones.
    """
    rate = hits / max(trials, 1)
    if rate <= share:
        return 1.0
    far = float(rel_entr(rate, share) + rel_entr(1 - rate, 1 - share)) if rate <= 1 else np.inf
    return float(np.exp(-trials * far))


def binomial_squares(trials: int, share: float) -> ChanceLaw:
    """Return the law of (count - its mean)², in units of its variance, of a binomial count."""
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    counts = _possible_counts(mean, 0, trials)
    return np.square(counts - np.float64(mean)) / variance, stats.binom.logpmf(
        counts, trials, share
    )


def common_law(size: int, first: int, second: int) -> ChanceLaw:
    """Return the law of the number of common members of two random parts of `size` things."""
    least, most = max(first + second - size, 0), min(first, second)
    numbers = _possible_counts(first * second / max(size, 1), least, most)
    return numbers.astype(np.float64), stats.hypergeom.logpmf(numbers, size, first, second)


def _possible_counts(mean: float, least: int, most: int) -> IntArray:
    """Return the counts from `least` to `most` whose chance is above 0 in floating point."""
    reach = _FAR * (np.sqrt(mean) + 1)
    return np.arange(max(int(mean - reach), least), min(int(mean + reach), most) + 1)


def tails(laws: Sequence[tuple[ChanceLaw, int]], total: float) -> tuple[float, float]:
    """Return bounds on the chances of at least, and of at most, this sum of independent values.

    `laws` has each law and how many values have it. For any slope t, the chance of a sum of s or
    more is at most E exp(t(sum - s)) (Chernoff's bound).
    """
    deviation = 1.0
    for (values, chances), count in laws:
        weights = np.exp(chances)
        mean = float(weights @ values)
        deviation += count * float(weights @ (values - mean) ** 2)
    slopes = np.concatenate([-_SLOPES, _SLOPES]) / np.sqrt(deviation)
    bounds = -slopes * total
    for (values, chances), count in laws:
        bounds += count * logsumexp(chances + slopes[:, None] * values, axis=1)
    half = len(_SLOPES)
    more, fewer = bounds[half:].min(), bounds[:half].min()
    return float(np.exp(min(more, 0.0))), float(np.exp(min(fewer, 0.0)))
