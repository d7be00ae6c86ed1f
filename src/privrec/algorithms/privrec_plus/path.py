"""Which way a run under noise goes, and why, in sentences for `--dry-run`."""

import math
from collections.abc import Sequence

from privrec.algorithms.privrec_plus.kernels import Kernels, kernels_of
from privrec.algorithms.privrec_plus.public import spending_of
from privrec.algorithms.privrec_plus.settings import SumsSettings, without_noise
from privrec.algorithms.recipe import Task
from privrec.core.phase import Stage

_MOST_PEOPLE = 10**10
"""More people than there are."""


def path_of(
    task: Task[SumsSettings], stages: Sequence[Stage], kernels: Kernels | None, *, subspace: bool
) -> tuple[str, ...]:
    """Return which releases the run makes and why; nothing where there is no noise.

    `kernels` choose the basis, or None if nothing does; `subspace` says how the tower is found.
    """
    settings, catalogue = task.settings, task.federation.catalogue
    if without_noise(settings) or settings.mechanism == "none":
        return ()
    if kernels is None:
        return (_without_features(settings, len(kernels_of(catalogue)), subspace=subspace),)
    return (_features(kernels), _moments(stages, catalogue.n_items))


def _without_features(settings: SumsSettings, kernels: int, *, subspace: bool) -> str:
    if not kernels:
        why = "items have no public features that tell them apart"
    elif subspace:
        why = f"in a subspace, for more than {settings.history_items:,} items, they are not used"
        why = why if settings.history == "auto" else "in a subspace they are not used"
    else:
        why = "with rounds on top they are not used"
    return f"features of items choose nothing: {why}"


def _features(kernels: Kernels) -> str:
    named = ", ".join(repr(kernel.name) for kernel in kernels.features)
    counted = "1 kernel" if len(kernels) == 1 else f"{len(kernels)} kernels"
    said = f"public features of items choose the basis ({counted}): {named}"
    for kernel in kernels.features:
        if kernel.left_out and kernel.vectors is not None:
            used = kernel.vectors.shape[1]
            said += f"; of {kernel.name!r} {used:,} words are used and {kernel.left_out:,} are not"
    return said


def _moments(stages: Sequence[Stage], n_items: int) -> str:
    """Return whether moments are asked for, and how many people would change that."""
    people = stages[0].release.sampling.cohort
    noise = whole_noise(stages)
    enough = people_for_moments(noise, n_items)
    asked = len(stages) > 2
    if enough is None:
        return "moments are not asked for: no number of people is enough for this noise"
    if asked:
        directions = spending_of(people, noise, n_items).directions
        return (
            f"moments are asked for in {directions:,} directions: {people:,} people are enough for"
            f" this noise; with fewer than about {enough:,}, popularity and alignments alone make"
            " the model"
        )
    return (
        f"popularity and alignments alone make the model: {people:,} people are too few for moments"
        f" under this noise; from about {enough:,} on they are asked for"
    )


def whole_noise(stages: Sequence[Stage]) -> float:
    """Return the noise of the one release that costs as much as all of these."""
    multipliers = [stage.release.noise_multiplier for stage in stages]
    return 1 / math.sqrt(sum(1 / multiplier**2 for multiplier in multipliers))


def people_for_moments(noise_multiplier: float, n_items: int) -> int | None:
    """Return from how many people on moments are worth their share; None if never.

    To two digits, because the noise of a run depends a little on what is calibrated last.
    """

    def asked(people: int) -> bool:
        return spending_of(people, noise_multiplier, n_items).moments > 0

    if not asked(_MOST_PEOPLE):
        return None
    low, high = 0, _MOST_PEOPLE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if asked(middle) else (middle, high)
    unit = 10 ** max(0, len(str(high)) - 2)
    return -(-high // unit) * unit
