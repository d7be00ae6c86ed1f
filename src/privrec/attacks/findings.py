"""Mistakes that an audit finds by looking inside: no attacker could, and no canary is needed.

What one person adds is longer than its bound; the noise is not what the ledger says, or occurs
again; sums are not counted. `cohorts` has those in who was drawn. The thresholds are so wide that a
right run is accused less than once in a million audits.

Mistakes in who was drawn: cohorts that are not what the ledger says, or not independent.

The ledger counts on each person being drawn independently of all others and of all rounds. So
people who are drawn in blocks, a cohort that is drawn again, and one that avoids those of the
rounds before break the guarantee, though everybody has the right chance.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from privrec.attacks.bounds import (
    binomial_squares,
    common_law,
    few_places,
    in_common,
    share_bound,
    tails,
)
from privrec.attacks.canaries import flattened, join, odd_people
from privrec.attacks.watch import Seen
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import grid_step
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import secure
from privrec.seeds import rng
from privrec.types import F64, BoolArray, IntArray

_EACH = 4
"""How many random people and people of many lines are tried, and half of the canaries' number."""
_SAMPLE = 300
_SLACK = 1e-3
_DEVIATIONS = 8.0
_CHANCE, _CHANCE_OF_ALL = 1e-12, 1e-9
_COMPARED, _BEGIN, _FEWEST = 50_000, 500, 50
_PLACES = 500
"""As many of the largest noises are compared in any order, in as many equally likely places. More
places would be as narrow as the grid that published sums are rounded to."""
_COARSE = 0.05
_ALIKE = 0.9
_LARGEST = 600.0
"""Of the absolute value of Laplace noise of scale 1; beyond it, chances are no numbers any more."""
_FIRST = np.zeros(1, np.int64)


def over_bound(seen: Sequence[Seen], canaries: Clients, others: Federation) -> list[str]:
    """Return the phases in which one person can add more to the sums than the bound allows.

    The sum is computed by the code that adds up cohorts. Tried are some canaries, odd people, some
    real people, and those with the most lines of a sample, in the first and in the last round of a
    phase. What canaries and odd people add together must be the sum of what each adds: else a
    person counts for more in company than alone.
    """
    sample = np.arange(min(_SAMPLE, others.n_clients))
    lines = others.take(sample)
    most = sample[np.argsort(-lines.sizes, kind="stable")[:_EACH]]
    # The most popular items first: rare ones may not be asked about.
    items = np.argsort(-np.bincount(lines.item, minlength=others.n_items), kind="stable")
    odd = odd_people(canaries.take(_FIRST), items)
    company = reduce(join, odd.values(), canaries.take(np.arange(2 * _EACH)))
    kinds = [*["like others"] * (2 * _EACH), *odd]
    real = np.unique(np.concatenate([sample[:_EACH], most]))
    found = []
    for one in _ends(seen):
        lengths = {"of the data": max(_length(one, _sum(one, others.take, k)) for k in real)}
        left = _sum(one, company.take, *range(len(company)))
        for k, kind in enumerate(kinds):
            alone = _sum(one, company.take, k)
            lengths[kind] = max(_length(one, alone), lengths.get(kind, 0.0))
            left -= alone
        kind, longest = max(lengths.items(), key=lambda item: item[1])
        if not longest <= one.clip_norm * (1 + _SLACK):
            found.append(
                f"{one.where}: one person adds a vector of length {longest:.4g}, above the bound"
                f" {one.clip_norm:.4g} that the noise is made for: a person {kind}"
            )
        if not _length(one, left) <= one.clip_norm * len(company) * _SLACK:
            found.append(f"{one.where}: what people add together is not the sum of what each adds")
    return found


def other_bound(seen: Sequence[Seen]) -> list[str]:
    """Return the first round in which devices kept to a larger bound than the noise is made for."""
    for one in seen:
        if one.phase.release.is_private and one.bound > one.clip_norm * (1 + _SLACK):
            kept, made = f"{one.bound:.4g}", f"{one.clip_norm:.4g}"
            return [f"{one.where}: devices keep to the bound {kept}, the noise is made for {made}"]
    return []


def _ends(seen: Sequence[Seen]) -> Iterator[Seen]:
    """Yield the first and the last round of each phase with noise."""
    phases: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        if one.phase.release.is_private:
            phases[one.phase.name].append(one)
    for rounds in phases.values():
        yield rounds[0]
        if len(rounds) > 1:
            yield rounds[-1]


def wrong_noise(seen: Sequence[Seen]) -> list[str]:
    """Return where the noise is not independent, or not of the promised kind and scale."""
    found, before = [], np.zeros(0)
    for one in seen:
        if not one.phase.release.is_private:
            continue
        scale = one.noise_scale
        law = stats.laplace if one.phase.release.mechanism == "laplace" else stats.norm
        for name, values in one.noise.items():
            some = np.ravel(values).astype(np.float64) / scale
            other = (
                len(some) >= _FEWEST and stats.kstest(some[:_COMPARED], law.cdf).pvalue < _CHANCE
            )
            if other or too_small(some, laplace=law is stats.laplace):
                found.append(
                    f"{one.where}: the noise on {name!r} is not {law.name} of scale {scale:.4g}"
                )
        whole = _as_normal(one)[:_COMPARED]
        if len(whole) >= _FEWEST and _most_alike(whole, whole, own=True) > _DEVIATIONS:
            found.append(f"{one.where}: the noise repeats itself")
        if min(len(whole), len(before)) >= _FEWEST and _most_alike(whole, before) > _DEVIATIONS:
            found.append(f"{one.where}: the noise is that of the round before")
        before = whole
    return found


def noise_again(seen: Sequence[Seen]) -> list[str]:
    """Return the first round whose beginning is that of an earlier one, or its reversed end.

    It may be shifted, and multiplied by a number.
    """
    rounds, firsts, lasts = list[Seen](), list[F64](), list[F64]()
    for one in seen:
        noise = _as_normal(one) if one.phase.release.is_private else np.zeros(0)
        if len(noise) >= _FEWEST:
            rounds.append(one)
            firsts.append(noise[:_BEGIN].copy())  # A view would keep all of it in memory.
            lasts.append(noise[-_BEGIN:].copy())
    if len(rounds) < 2:
        return []
    size = min(map(len, firsts))
    begins = _spectra([noise[:size] for noise in firsts])
    ends = _spectra([noise[-size:] for noise in lasts])
    # The correlation of independent noises has a deviation of about 1/√size, and is never above 1.
    least = min(_DEVIATIONS / math.sqrt(size), _ALIKE)
    for second in range(1, len(rounds)):
        ahead, back = begins[:second] * begins[second].conj(), ends[:second] * begins[second]
        most = np.maximum(*(np.abs(np.fft.irfft(products)).max(1) for products in (ahead, back)))
        if most.max() > least:
            first = rounds[int(np.argmax(most))]
            return [f"{rounds[second].where}: the noise is that of {first.where}"]
    return []


def _spectra(noises: Sequence[F64]) -> npt.NDArray[np.complex128]:
    """Return the spectrum of each noise, scaled to length 1 and with room for any shift."""
    whole = np.stack(noises)
    whole /= np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-30)
    return np.fft.rfft(whole, 2 * whole.shape[1])


class Largest(NamedTuple):
    """The largest of `size` noises: the chances of a larger one, of either sign, in any order."""

    size: int
    chances: F64

    def places(self, size: int) -> IntArray:
        """Return the place of each that would be among the largest of `size` noises."""
        share = min(1.0, _PLACES / max(size, 1))
        among = self.chances[self.chances < share]
        return np.asarray(among * (_PLACES / share), np.int64)


def same_noise(seen: Sequence[Seen]) -> list[str]:
    """Return where values of the noise occur again, in whatever order and with whatever sign.

    They are looked for in one sum, in two sums of a round, and in any two rounds.
    """
    rounds = [one for one in seen if one.phase.release.is_private]
    wholes, found = list[Largest](), list[str]()
    for one in rounds:
        names, parts = zip(*sorted(largest_noises(one).items()), strict=True)
        size = sum(part.size for part in parts)
        wholes.append(Largest(size, np.concatenate([part.chances for part in parts])))
        if any(_repeats(what, len(rounds) * (1 + len(parts))) for what in (*parts, wholes[-1])):
            found.append(f"{one.where}: the noise repeats itself in some order")
        pair = _shared(parts, len(rounds))
        if pair is not None:
            first, second = (names[k] for k in pair)
            found.append(f"{one.where}: the noise on {second!r} is that on {first!r} in some order")
    pair = _shared(wholes, 1)
    if pair is not None:
        first, second = (rounds[k].where for k in pair)
        found.append(f"{second}: the noise is that of {first} in some order")
    return found


def _repeats(what: Largest, times: int) -> bool:
    """Return whether values occur more than once, in one of so many tests."""
    places = what.places(what.size)
    return few_places(len(places), _PLACES, len(np.unique(places))) * times < _CHANCE_OF_ALL


def _shared(several: Sequence[Largest], times: int) -> tuple[int, int] | None:
    """Return the first two that have many values in common, in one of so many tests."""
    order = sorted(range(len(several)), key=lambda k: several[k].size)
    pairs = times * len(order) * (len(order) - 1) / 2
    hit, counts, size = np.zeros((0, _PLACES), np.float32), np.zeros(0, np.int64), -1
    for number, k in enumerate(order):
        if several[k].size != size:  # The places are those of the larger one of a pair.
            size = several[k].size
            hit = np.zeros((len(order), _PLACES), np.float32)
            for row, j in enumerate(order):
                hit[row, several[j].places(size)] = 1.0
            counts = hit.sum(1).astype(np.int64)
        common = (hit[:number] @ hit[number]).astype(np.int64)
        chances = in_common(_PLACES, int(counts[number]), counts[:number], common)
        if number and chances.min() * pairs < _CHANCE_OF_ALL:
            first, second = sorted((order[int(np.argmin(chances))], k))
            return first, second
    return None


def largest_noises(one: Seen) -> dict[str, Largest]:
    """Return the largest noises on each sum of a round.

    Published numbers lie on a grid. A random part of its step is added, the same in each audit, so
    that no two values are equal because of the grid. Of sums that are so large that the steps of
    32 bits are coarse beside the noise, nothing can be said.
    """
    scale, laplace = one.noise_scale, one.phase.release.mechanism == "laplace"
    draw, found = rng(0, one.round_index, "audited noise"), {}
    for name, leaf in one.noise.items():
        noise = np.ravel(np.asarray(leaf, np.float64))
        published = np.ravel(np.asarray(one.published.update[name], np.float32))
        step = np.maximum(np.spacing(np.abs(published)), grid_step(scale))
        moved = noise + step * (draw.random(len(noise)) - 0.5)
        size = np.abs(moved[step <= _COARSE * scale]) / scale
        chances = np.exp(-size) if laplace else 2 * stats.norm.sf(size)
        found[name] = Largest(len(size), chances[chances < _PLACES / max(len(size), 1)])
    return found


def _as_normal(one: Seen) -> F64:
    """Return the noise of a round as standard normal values, in the order in which it is added.

    Laplace noise is mapped to them: products of its own values are far more often large.
    """
    noise = flattened(one.noise) / one.noise_scale
    if one.phase.release.mechanism != "laplace":
        return noise
    size = np.minimum(np.abs(noise), _LARGEST)
    return np.asarray(np.sign(noise) * stats.norm.isf(stats.laplace.sf(size)), np.float64)


def too_small(noise: F64, *, laplace: bool) -> bool:
    """Return whether the noise is smaller than of scale 1, by the law of its own size.

    The sum of squares of n normal values has a chi-square law of n degrees, and the sum of n
    absolute values of Laplace's a gamma law of shape n.
    """
    if laplace:
        chance = stats.gamma.cdf(np.abs(noise).sum(), len(noise))
    else:
        chance = stats.chi2.cdf(np.square(noise).sum(), len(noise))
    return bool(len(noise)) and bool(chance < _CHANCE)


def wrong_count(seen: Sequence[Seen]) -> list[str]:
    """Return the phases whose count of clipped updates has less noise than the ledger says."""
    noises: dict[str, list[float]] = defaultdict(list)
    for one in seen:
        release = one.phase.release
        if one.count_noise is not None and release.quantile_multiplier:
            scale = release.quantile_multiplier * release.sampling.reach / 2
            noises[one.phase.name].append(one.count_noise / scale)
    return [
        f"{name}: the noise on the count of adaptive clipping is smaller than the ledger says"
        for name, found in noises.items()
        if too_small(np.array(found), laplace=False)
    ]


def same_generator() -> list[str]:
    """Return a finding if the secure generator of noise begins with the same numbers each time."""
    if np.array_equal(secure().normal(8), secure().normal(8)):
        return ["the secure generator of noise gives the same numbers each time it is made"]
    return []


def _most_alike(one: F64, other: F64, *, own: bool = False) -> float:
    """Return the largest correlation of two noises at any shift, also reversed, in deviations."""
    size = 2 ** math.ceil(math.log2(len(one) + len(other)))
    first, second = np.fft.rfft(one, size), np.fft.rfft(other, size)
    ahead, back = np.fft.irfft(first * np.conj(second), size), np.fft.irfft(first * second, size)
    if own:
        ahead[0] = 0.0  # Everything is like itself where it is not shifted.
        back /= math.sqrt(2)  # Each product is there twice.
    most = max(float(np.max(np.abs(products))) for products in (ahead, back))
    shorter = min(np.linalg.norm(one), np.linalg.norm(other))
    return most / max(float(shorter), 1e-30)


def uncounted(seen: Sequence[Seen], ledger: PrivacyLedger) -> list[str]:
    """Return the phases of which the ledger has fewer rounds, or others, than were played."""
    counted = dict(ledger.entries)
    made = Counter(one.phase.release for one in seen if not one.phase.volunteers)
    names = {one.phase.release: one.phase.name for one in seen}
    return [
        f"{names[release]}: {times} such sums were published, and the ledger counts"
        f" {counted.get(release, 0)}"
        for release, times in made.items()
        if counted.get(release, 0) < times
    ]


def _sum(one: Seen, take: Callable[[IntArray], Clients], *people: int) -> F64:
    cohort = Cohort(np.array(people, np.int64), take)
    return flattened(fastest(one.phase, one.told, cohort, one.round_index, one.clip_norm).update)


def _length(one: Seen, vector: F64) -> float:
    # By the mechanism, and not by what the aggregator calls its norm: that may be the mistake.
    order = 1 if one.phase.release.mechanism == "laplace" else 2
    # What is not a number is longer than any bound.
    return float(np.nan_to_num(np.linalg.norm(vector, order), nan=np.inf))


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
