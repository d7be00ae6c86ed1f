"""Sampling of cohorts. The accountant counts the same object that draws the cohort."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privrec.errors import SettingsError
from privrec.types import IntArray, Law

Adjacency = Literal["add or remove one person", "replace one person"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How cohorts are sampled from `users` people, and the adjacency of the guarantee.

    `poisson` takes each person independently with probability cohort/users. `users` is a public
    number, so the probability does not depend on the true number of people. `fixed` takes exactly
    `cohort` people, uniformly, without replacement (the paper's choice). There `users` must be the
    true number, which is the same in the two data sets that the guarantee compares.

    >>> Sampling(law="fixed", users=4800, cohort=30).adjacency
    'replace one person'
    """

    law: Law
    users: int
    cohort: int

    def __post_init__(self) -> None:
        if self.law not in ("poisson", "fixed"):
            raise SettingsError(f"`sampling` must be 'poisson' or 'fixed'; got {self.law!r}")
        if not 1 <= self.cohort <= self.users:
            raise SettingsError(
                f"`cohort` must be <= {self.users}, the people who train, and >= 1;"
                f" got {self.cohort}"
            )

    @property
    def share(self) -> float:
        """The probability that a given person takes part in a given round."""
        return self.cohort / self.users

    @property
    def adjacency(self) -> Adjacency:
        """How the two data sets differ that the guarantee compares."""
        return "add or remove one person" if self.law == "poisson" else "replace one person"

    @property
    def reach(self) -> float:
        """The sensitivity of a sum of vectors of norm <= 1: 1, or 2 for replace-one."""
        return 1.0 if self.law == "poisson" else 2.0

    def draw(self, population: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the cohort of one round, a part of `population`; it may be empty under Poisson.

        The cost of drawing does not depend on the size of the population.
        """
        count = len(population)
        if self.law == "fixed":
            if count != self.users:
                raise SettingsError(
                    f"the accountant counts {self.users} people; the population has {count}"
                )
            return population[rng.choice(count, self.cohort, replace=False, shuffle=False)]
        # Poisson sampling is a binomial number of people, chosen uniformly.
        heads = int(rng.binomial(count, self.share))
        return population[rng.choice(count, heads, replace=False, shuffle=False)]
