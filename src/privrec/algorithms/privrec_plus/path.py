"""Sentences for `--dry-run`: which noised sums a run publishes, and why."""

import math
from collections.abc import Sequence

from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import (
    MOST_ITEMS,
    WIDEST,
    fewest_per_noise,
    spending_of,
)
from privrec.algorithms.privrec_plus.settings import SumsSettings, without_noise
from privrec.algorithms.recipe import Task
from privrec.core.phase import Stage


def path_of(
    task: Task[SumsSettings], stages: Sequence[Stage], kernels: Kernels | None, *, subspace: bool
) -> tuple[str, ...]:
    """Return sentences on the run's releases (noised sums), or () for a run without noise.

    `kernels` is None if the run does not use features of items (`public.py`). `subspace` says
    whether the model is computed by subspace iteration.
    """
    settings, catalogue = task.settings, task.federation.catalogue
    if without_noise(settings) or settings.mechanism == "none":
        return ()
    if kernels is None:
        return (_without_features(settings, len(kernels_of(catalogue)), subspace=subspace),)
    said = (_features(kernels), _moments(stages, catalogue.n_items))
    if catalogue.n_items <= settings.history_items:
        return said
    return (*said, _large(catalogue.n_items, settings.history_items))


def _without_features(settings: SumsSettings, kernels: int, *, subspace: bool) -> str:
    if not kernels:
        why = "items have no public features that say which of them are alike"
    elif subspace:
        why = f"in a subspace, for more than {settings.history_items:,} items, they are not used"
        why = why if settings.history == "auto" else "in a subspace they are not used"
        if not settings.rounds:
            why += " (they are with `history` = 'closed-form')"
    else:
        why = "with rounds on top they are not used"
    return f"features of items choose nothing: {why}"


def _features(kernels: Kernels) -> str:
    named = ", ".join(map(repr, kernels.sources))
    counted = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
    said = f"public features of items choose the basis ({counted}): {named}"
    for kernel in kernels.features:
        if kernel.left_out and kernel.vectors is not None:
            used = kernel.vectors.shape[1]
            said += f"; of {kernel.name!r} {used:,} words are used and {kernel.left_out:,} are not"
    return said


def _moments(stages: Sequence[Stage], n_items: int) -> str:
    """Return a sentence: whether devices send moments, and how many people would change this."""
    people, noise = stages[0].release.sampling.cohort, whole_noise(stages)
    with_features, without = (rounded_up(each * noise) for each in fewest_per_noise(n_items))
    if len(stages) < 3:
        return (
            f"popularity and alignments alone make the model: {people:,} people are too few for"
            f" moments under this noise; from about {without:,} on they can be asked for"
        )
    spending = spending_of(people, noise, n_items)
    if spending.least_trust <= 1:
        return (
            f"the last release counts popularity again if the features turn out to matter, and else"
            f" moments: {people:,} people are in between for this noise; from about"
            f" {with_features:,} on moments are asked for, with fewer than about {without:,} never"
        )
    return (
        f"moments are asked for in {spending.directions:,} directions: {people:,} people are enough"
        f" for this noise; with fewer than about {with_features:,} they are not, where features"
        " matter; if the alignments say that no feature matters, they are those of the frequent"
        " items instead"
    )


def _large(n_items: int, most: int) -> str:
    return (
        f"{n_items:,} items are more than {most:,} (`history_items`): the basis is over the"
        f" {min(MOST_ITEMS, n_items):,} most popular ones, the others get vectors from their"
        f" features, and no vector is longer than {WIDEST:,}"
    )


def whole_noise(stages: Sequence[Stage]) -> float:
    """Return the noise multiplier of one release that costs as much as all stages together.

    The result is 0 if a stage has no noise.
    """
    multipliers = [stage.release.noise_multiplier for stage in stages]
    if 0 in multipliers:
        return 0.0
    return 1 / math.sqrt(sum(1 / multiplier**2 for multiplier in multipliers))


def rounded_up(people: float) -> int:
    """Return the number of people, rounded up to two digits.

    More digits would not be exact, because the last calibration changes the noise a little.
    """
    whole = math.ceil(people)
    unit: int = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // unit) * unit
