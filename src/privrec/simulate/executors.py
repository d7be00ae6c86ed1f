"""What runs a cohort on this machine: one person after another, or the algorithm's own kernel."""

import numpy as np

from privrec.core.contribution import add_to, bounded
from privrec.core.phase import Cohort, Phase, Told
from privrec.privacy.aggregate import CohortTotal
from privrec.types import Leaf


def one_by_one(
    phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the sum of the cohort's bounded contributions by a plain loop: the slow truth."""
    total: dict[str, Leaf] = {}
    clipped = dropped = 0
    norm = phase.aggregator.norm
    for position in cohort.people:
        person = cohort.take(np.array([position]))
        found = bounded(phase.device.contribute(told, person, round_index), clip_norm, norm)
        add_to(total, found.contribution)
        clipped += found.was_long
        dropped += not found.is_finite
    if not total:
        # Nobody was drawn. The sum is zero, and has the shapes of anybody's contribution.
        nobody = cohort.take(phase.population[:1])
        nobody = nobody.keep(np.zeros(len(nobody.item), np.bool_))
        add_to(total, phase.device.contribute(told, nobody, round_index))
        total = {name: np.zeros_like(leaf) for name, leaf in total.items()}
    return CohortTotal(total, clipped=clipped, dropped=dropped)


def fastest(
    phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the same by the kernel that the algorithm offers, or else one by one."""
    kernel = phase.device.kernel
    if kernel is None:
        return one_by_one(phase, told, cohort, round_index, clip_norm)
    return kernel(told, cohort, round_index, clip_norm)
