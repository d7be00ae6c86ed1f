"""Mistakes that need no statistics: what is longer than its bound, and people drawn again."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from privrec.attacks.stacks import flattened
from privrec.attacks.watch import Seen
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation

_EACH = 4
"""How many canaries, how many random people and how many people of many lines are tried."""
_SAMPLE = 300
_SLACK = 1e-3
_DEVIATIONS = 6.0
"""A right draw is further from its mean about once in a thousand million rounds."""


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


def drawn_again(seen: Sequence[Seen]) -> list[str]:
    """Return the rounds that have far more people in common with the one before than by chance."""
    found = []
    for before, one in pairwise(seen):
        if before.people is None or one.people is None or one.phase.release.sampling.share >= 1:
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
