"""Mistakes in who was drawn: cohorts that are not what the ledger says, or not independent.

The ledger counts on each person being drawn independently of all others and of all rounds. So
people who are drawn in blocks, a cohort that is drawn again, and one that avoids those of the
rounds before break the guarantee, though everybody has the right chance.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from scipy import stats

from privrec.attacks.chances import (
    binomial_squares,
    common_law,
    few_places,
    in_common,
    share_bound,
    tails,
)
from privrec.attacks.watch import Seen
from privrec.seeds import rng
from privrec.types import BoolArray

_CHANCE_OF_COHORTS = 1e-9
"""Of each kind of finding in a right run: the sum over all rounds, people or pairs of them."""
_MOST, _PAIRED = 20_000, 4000
"""Of more people, the first and the last ones are looked at; every two of some are compared."""


def too_many(seen: Sequence[Seen]) -> list[str]:
    """Return the phases that drew somebody twice in a round, or more people than are counted."""
    found = []
    for name, rounds in _phases(seen):
        phase, drawn = rounds[0].phase, [one.people for one in rounds]
        if any(len(np.unique(people)) < len(people) for people in drawn):
            found.append(f"{name}: somebody was drawn twice in one round")
        sampling, total = phase.release.sampling, sum(map(len, drawn))
        asked = len(phase.population) * len(rounds)
        fixed = sampling.law == "fixed"
        chance = 1.0 if fixed else stats.binom.sf(total - 1, asked, sampling.share)
        if chance < _CHANCE_OF_COHORTS or (fixed and total > sampling.cohort * len(rounds)):
            found.append(
                f"{name}: {total / len(rounds):.4g} people were drawn for a round, and the ledger"
                f" counts {asked * sampling.share / len(rounds):.4g}"
            )
    return found


def drawn_together(seen: Sequence[Seen]) -> list[str]:
    """Return the phases in which people, or rounds, were not drawn independently of each other.

    Of Poisson cohorts, the numbers of people must spread as coin tosses do, and so must the numbers
    of rounds that people were in; no two people may have been in the same rounds more often than
    by chance. Of all cohorts, people at any distance from each other in the order of the data must
    not be drawn together.
    """
    found = []
    for name, rounds in _phases(seen):
        sampling, users = rounds[0].phase.release.sampling, len(rounds[0].phase.population)
        if sampling.share >= 1:
            continue
        drawn, sizes = _drawn(rounds), np.array([len(np.unique(one.people)) for one in rounds])
        said = [_neighbours(drawn, sampling.share)]
        if sampling.law == "poisson":
            said += [
                _spread(sizes, users, sampling.share, "people in a round"),
                _spread(drawn.sum(0), len(rounds), sampling.share, "rounds of a person"),
                _same_rounds(drawn),
            ]
        found += [f"{name}: {one}" for one in said if one]
    return found


def drawn_again(seen: Sequence[Seen]) -> list[str]:
    """Return rounds whose people are, or are not, those of another round far more than by chance.

    Compared are any two rounds, of whatever phase, that draw from the same people, and all rounds
    in a row together.
    """
    groups: dict[bytes, list[Seen]] = defaultdict(list)
    for _, rounds in _phases(seen):
        if rounds[0].phase.release.sampling.share < 1:
            groups[rounds[0].phase.population.tobytes()] += rounds
    found = []
    for rounds in groups.values():
        drawn = _drawn(rounds)
        if said := _same_people(rounds, drawn) or _in_a_row(rounds, drawn):
            found.append(said)
    return found


def _same_people(rounds: Sequence[Seen], drawn: BoolArray) -> str:
    """Return a finding if two rounds have too many people in common."""
    sizes, wide = drawn.sum(1), drawn.astype(np.float32)
    pairs = len(rounds) * (len(rounds) - 1) / 2
    for second in range(1, len(rounds)):
        common = (wide[:second] @ wide[second]).astype(np.int64)
        chances = in_common(drawn.shape[1], int(sizes[second]), sizes[:second], common)
        first = int(np.argmin(chances))
        if chances[first] * pairs < _CHANCE_OF_COHORTS:
            expected = sizes[first] * sizes[second] / drawn.shape[1]
            return (
                f"{rounds[second].where}: {common[first]} of {sizes[second]} people were in"
                f" {rounds[first].where} too; {expected:.0f} are expected"
            )
    return ""


def _in_a_row(rounds: Sequence[Seen], drawn: BoolArray) -> str:
    """Return a finding if rounds in a row have too many, or too few, people in common."""
    users, sizes = drawn.shape[1], drawn.sum(1).tolist()
    kinds = Counter(pairwise(sizes))
    laws = [(common_law(users, *sizes), count) for sizes, count in kinds.items()]
    common = int((drawn[1:] & drawn[:-1]).sum())
    if not laws or min(tails(laws, common)) * 2 >= _CHANCE_OF_COHORTS:
        return ""
    expected = sum(count * one * other / users for (one, other), count in kinds.items())
    return (
        f"{rounds[0].where} to {rounds[-1].where}: rounds in a row have {common} people in common;"
        f" {expected:.0f} are expected"
    )


def _spread(counts: np.ndarray, trials: int, share: float, what: str) -> str:
    """Return a finding if counts of heads among so many coins spread too much or too little."""
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    total = float(np.square(counts - mean).sum()) / variance
    more, less = tails([(binomial_squares(trials, share), len(counts))], total)
    if 2 * min(more, less) >= _CHANCE_OF_COHORTS:
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
        if few_places(total, many, len(of_these)) * (len(drawn) + 1) < _CHANCE_OF_COHORTS:
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
    for one in drawn if share <= 0.5 else ~drawn:
        spectrum += np.abs(np.fft.rfft(one, 2 * people)) ** 2
    pairs = np.fft.irfft(spectrum)[1 : people // 2 + 1]
    if not len(pairs):
        return ""
    most, at = round(float(pairs.max())), int(np.argmax(pairs)) + 1
    trials = math.ceil(rounds * people / 2)
    if 2 * len(pairs) * share_bound(trials, chance, most / 2) >= _CHANCE_OF_COHORTS:
        return ""
    what = "drawn" if share <= 0.5 else "left out"
    return (
        f"people {at} places apart were {what} together {most} times;"
        f" {chance * rounds * (people - at):.0f} are expected"
    )


def _phases(seen: Sequence[Seen]) -> Iterator[tuple[str, list[Seen]]]:
    phases: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        phases[one.phase.name].append(one)
    yield from phases.items()


def _drawn(rounds: Sequence[Seen]) -> BoolArray:
    """Return who of the population was drawn in which round, shape (rounds, people)."""
    population, half = rounds[0].phase.population, _MOST // 2
    if len(population) > _MOST:
        population = np.concatenate([population[:half], population[-half:]])
    return np.stack([np.isin(population, one.people) for one in rounds])
