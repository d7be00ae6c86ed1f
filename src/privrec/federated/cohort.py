"""Who takes part in a round."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privrec.errors import SettingsError
from privrec.types import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortSampler:
    """A law of drawing: `sample(population, rng)` returns the positions of the cohort."""

    expected_cohort: int
    sample: Callable[[IntArray, np.random.Generator], IntArray]


def fixed_size(cohort: int) -> CohortSampler:
    """Return the paper's law: `cohort` people, uniformly, without replacement.

    Drawing costs the same whether the population is a thousand or a million.
    """

    def sample(population: IntArray, rng: np.random.Generator) -> IntArray:
        if cohort > len(population):
            raise SettingsError(
                f"cohort must be at most the {len(population)} people who train; got {cohort}"
            )
        return population[rng.choice(len(population), cohort, replace=False, shuffle=False)]

    return CohortSampler(expected_cohort=cohort, sample=sample)
