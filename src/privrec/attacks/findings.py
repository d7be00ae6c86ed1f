"""Mistakes that an audit finds by looking inside: no attacker could, and no canary is needed.

What one person adds is longer than its bound; noise is not what the ledger says; people are drawn
again. The thresholds are so wide that a right run is accused less than once in a million audits.
"""

import math
from collections.abc import Sequence
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

_EACH = 4
"""How many canaries, how many random people and how many people of many lines are tried."""
_SAMPLE = 300
_SLACK = 1e-3
_DEVIATIONS = 8.0
_CHANCE = 1e-12
_COMPARED, _FEWEST = 50_000, 50
_FIRST = np.zeros(1, np.int64)


def over_bound(seen: Sequence[Seen], canaries: Clients, others: Federation) -> list[str]:
    """Return the phases in which one person alone adds more to the sums than the bound allows.

    The sum is computed by the code that adds up cohorts. Tried are some canaries, some people, and
    those with the most lines of a sample.
    """
    sample = np.arange(min(_SAMPLE, others.n_clients))
    most = sample[np.argsort(-others.take(sample).sizes, kind="stable")[:_EACH]]
    tried = [
        *(Cohort(np.array([k]), canaries.take) for k in range(_EACH)),
        *(Cohort(np.array([k]), others.take) for k in {*sample[:_EACH].tolist(), *most.tolist()}),
        *(Cohort(np.zeros(1, np.int64), odd.take) for odd in _odd_people(canaries.take(_FIRST))),
    ]
    found, known = [], set[str]()
    for one in seen:
        if one.phase.name in known or not one.phase.release.is_private:
            continue
        known.add(one.phase.name)
        longest = max(_length(one, cohort) for cohort in tried)
        if not longest <= one.clip_norm * (1 + _SLACK):
            found.append(
                f"{one.phase.name}: one person adds a vector of length {longest:.4g}, above the"
                f" bound {one.clip_norm:.4g} that the noise is made for"
            )
    return found


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
            some = np.ravel(values)[:_COMPARED] / scale
            if len(some) >= _FEWEST and stats.kstest(some, law.cdf).pvalue < _CHANCE:
                found.append(
                    f"{where}: the noise on {name!r} is not {law.name} of scale {scale:.4g}"
                )
        whole = flattened(one.noise)[:_COMPARED] / scale
        if len(whole) >= _FEWEST and _most_alike(whole, whole, own=True) > _DEVIATIONS:
            found.append(f"{where}: the noise repeats itself")
        if min(len(whole), len(before)) >= _FEWEST and _most_alike(whole, before) > _DEVIATIONS:
            found.append(f"{where}: the noise is that of the round before")
        before = whole
    return found


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
        users = one.phase.release.sampling.users
        expected = len(before.people) * len(one.people) / users
        common = len(np.intersect1d(before.people, one.people))
        if common > expected + _DEVIATIONS * math.sqrt(expected + 1) and len(before.people) < users:
            found.append(
                f"round {one.round_index} ({one.phase.name}): {common} of {len(one.people)} people"
                f" were in the round before too; {expected:.0f} are expected"
            )
    return found


def _length(one: Seen, cohort: Cohort) -> float:
    total = fastest(one.phase, one.told, cohort, one.round_index, one.clip_norm).update
    order = 1 if one.phase.aggregator.norm == "l1" else 2
    return float(np.linalg.norm(flattened(total), order))
