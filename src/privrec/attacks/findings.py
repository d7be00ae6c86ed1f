"""Mistakes that an audit finds by looking inside: no attacker could, and no canary is needed.

What one person adds is longer than its bound; noise or cohorts are not what the ledger says; people
are drawn again. The thresholds are so wide that a right run is accused less than once in a million
audits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy import stats

from privrec.attacks.stacks import Doubles, flattened
from privrec.attacks.watch import Seen
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.noise import secure

_EACH = 4
"""How many random people and people of many lines are tried, and half of the canaries' number."""
_SAMPLE = 300
_SLACK = 1e-3
_DEVIATIONS = 8.0
_CHANCE, _CHANCE_OF_PHASE = 1e-12, 1e-9
_COMPARED, _BEGIN, _FEWEST = 50_000, 200, 50
_ALIKE = 0.9
_LARGEST = 600.0
"""Of the absolute value of Laplace noise of scale 1; beyond it, chances are no numbers any more."""
_FIRST = np.zeros(1, np.int64)


def over_bound(seen: Sequence[Seen], canaries: Clients, others: Federation) -> list[str]:
    """Return the phases in which one person can add more to the sums than the bound allows.

    The sum is computed by the code that adds up cohorts. Tried are some canaries, some people, and
    those with the most lines of a sample, in the first and in the last round of a phase. What some
    canaries add together must be the sum of what each adds: else a person counts for more in
    company than alone.
    """
    sample = np.arange(min(_SAMPLE, others.n_clients))
    most = sample[np.argsort(-others.take(sample).sizes, kind="stable")[:_EACH]]
    few = np.arange(2 * _EACH)
    tried = [
        *(Cohort(np.array([k]), others.take) for k in {*sample[:_EACH].tolist(), *most.tolist()}),
        *(Cohort(np.zeros(1, np.int64), odd.take) for odd in _odd_people(canaries.take(_FIRST))),
    ]
    found = []
    for one in _ends(seen):
        where, bound = f"round {one.round_index} ({one.phase.name})", one.clip_norm
        longest = max(_length(one, _sum(one, cohort)) for cohort in tried)
        left = _sum(one, Cohort(few, canaries.take))
        for k in few:
            alone = _sum(one, Cohort(few[k : k + 1], canaries.take))
            longest = max(longest, _length(one, alone))
            left -= alone
        if not longest <= bound * (1 + _SLACK):
            found.append(
                f"{where}: one person adds a vector of length {longest:.4g}, above the bound"
                f" {bound:.4g} that the noise is made for"
            )
        if not _length(one, left) <= bound * len(few) * _SLACK:
            found.append(f"{where}: what people add together is not the sum of what each adds")
    return found


def other_bound(seen: Sequence[Seen]) -> list[str]:
    """Return the first round in which devices kept to a larger bound than the noise is made for."""
    for one in seen:
        if one.phase.release.is_private and one.bound > one.clip_norm * (1 + _SLACK):
            where = f"round {one.round_index} ({one.phase.name})"
            kept, made = f"{one.bound:.4g}", f"{one.clip_norm:.4g}"
            return [f"{where}: devices keep to the bound {kept}, the noise is made for {made}"]
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


def _odd_people(person: Clients) -> list[Clients]:
    """Return the person with one line, with dislikes alone, and with half of each."""
    lines = np.arange(len(person.item))
    return [
        person.keep(lines == 0),
        replace(person, liked=np.zeros(len(lines), np.bool_)),
        replace(person, liked=lines % 2 == 0),
    ]


def wrong_noise(seen: Sequence[Seen]) -> list[str]:
    """Return where the noise is not independent, or not of the promised kind and scale."""
    found, before = [], np.zeros(0)
    for one in seen:
        where = f"round {one.round_index} ({one.phase.name})"
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
                    f"{where}: the noise on {name!r} is not {law.name} of scale {scale:.4g}"
                )
        whole = _as_normal(one)[:_COMPARED]
        if len(whole) >= _FEWEST and _most_alike(whole, whole, own=True) > _DEVIATIONS:
            found.append(f"{where}: the noise repeats itself")
        if min(len(whole), len(before)) >= _FEWEST and _most_alike(whole, before) > _DEVIATIONS:
            found.append(f"{where}: the noise is that of the round before")
        before = whole
    return found


def noise_again(seen: Sequence[Seen]) -> list[str]:
    """Return the first round that has the noise of any earlier one, in the same order."""
    rounds = [one for one in seen if one.phase.release.is_private]
    noises = [(one, _as_normal(one)[:_BEGIN]) for one in rounds]
    rounds = [one for one, noise in noises if len(noise) >= _FEWEST]
    if len(rounds) < 2:
        return []
    known = [noise for _, noise in noises if len(noise) >= _FEWEST]
    size = min(map(len, known))
    begins = np.stack([noise[:size] for noise in known])
    begins /= np.maximum(np.linalg.norm(begins, axis=1, keepdims=True), 1e-30)
    # The correlation of independent noises has a deviation of about 1/√size, and is never above 1.
    alike = np.tril(np.abs(begins @ begins.T), -1) > min(_DEVIATIONS / math.sqrt(size), _ALIKE)
    for second, first in np.argwhere(alike):
        one, other = rounds[second], rounds[first]
        where = f"round {one.round_index} ({one.phase.name})"
        return [f"{where}: the noise is that of round {other.round_index} ({other.phase.name})"]
    return []


def _as_normal(one: Seen) -> Doubles:
    """Return the noise of a round as standard normal values, in the order in which it is added.

    Laplace noise is mapped to them: products of its own values are far more often large.
    """
    noise = flattened(one.noise) / one.noise_scale
    if one.phase.release.mechanism != "laplace":
        return noise
    size = np.minimum(np.abs(noise), _LARGEST)
    return np.asarray(np.sign(noise) * stats.norm.isf(stats.laplace.sf(size)), np.float64)


def too_small(noise: Doubles, *, laplace: bool) -> bool:
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


def _most_alike(one: Doubles, other: Doubles, *, own: bool = False) -> float:
    """Return the largest correlation of two noises at any shift, in standard deviations."""
    size = 2 ** math.ceil(math.log2(len(one) + len(other)))
    products = np.fft.irfft(np.fft.rfft(one, size) * np.conj(np.fft.rfft(other, size)), size)
    if own:
        products[0] = 0.0  # Everything is like itself where it is not shifted.
    shorter = min(np.linalg.norm(one), np.linalg.norm(other))
    return float(np.max(np.abs(products))) / max(float(shorter), 1e-30)


def drawn_again(seen: Sequence[Seen]) -> list[str]:
    """Return the rounds that have far more people in common with the one before than by chance."""
    found = []
    for before, one in pairwise(seen):
        if one.phase.release.sampling.share >= 1:
            continue
        # Those who are there: a declared number of people may be larger.
        users = len(one.phase.population)
        expected = len(before.people) * len(one.people) / users
        common = len(np.intersect1d(before.people, one.people))
        if common > expected + _DEVIATIONS * math.sqrt(expected + 1) and len(before.people) < users:
            found.append(
                f"round {one.round_index} ({one.phase.name}): {common} of {len(one.people)} people"
                f" were in the round before too; {expected:.0f} are expected"
            )
    return found


def too_many(seen: Sequence[Seen]) -> list[str]:
    """Return the phases that drew somebody twice in a round, or more people than are counted."""
    found = []
    phases: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        phases[one.phase.name].append(one)
    for name, rounds in phases.items():
        phase, drawn = rounds[0].phase, [one.people for one in rounds]
        if any(len(np.unique(people)) < len(people) for people in drawn):
            found.append(f"{name}: somebody was drawn twice in one round")
        sampling, total = phase.release.sampling, sum(map(len, drawn))
        asked = len(phase.population) * len(rounds)
        fixed = sampling.law == "fixed"
        chance = 1.0 if fixed else stats.binom.sf(total - 1, asked, sampling.share)
        if chance < _CHANCE_OF_PHASE or (fixed and total > sampling.cohort * len(rounds)):
            found.append(
                f"{name}: {total / len(rounds):.4g} people were drawn for a round, and the ledger"
                f" counts {asked * sampling.share / len(rounds):.4g}"
            )
    return found


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


def _sum(one: Seen, cohort: Cohort) -> Doubles:
    return flattened(fastest(one.phase, one.told, cohort, one.round_index, one.clip_norm).update)


def _length(one: Seen, vector: Doubles) -> float:
    # By the mechanism, and not by what the aggregator calls its norm: that may be the mistake.
    order = 1 if one.phase.release.mechanism == "laplace" else 2
    return float(np.linalg.norm(vector, order))
