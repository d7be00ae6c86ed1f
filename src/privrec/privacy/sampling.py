"""Who takes part in a round. The object that draws the cohort is the one that is accounted for."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privrec.errors import SettingsError
from privrec.types import IntArray, Law

Adjacency = Literal["add or remove one person", "replace one person"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A law of drawing cohorts from `users` people, and what a guarantee under it compares.

    `poisson` takes each person by a coin of her own that falls with probability cohort/users:
    `users` is a public number, and the coin is the same whatever the true number is. `fixed` takes
    exactly `cohort` people, uniformly, without replacement (the paper's choice); there `users` must
    be the true number, which is the same in the two data sets that it compares.

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
        """What the two data sets differ by that the guarantee compares."""
        return "add or remove one person" if self.law == "poisson" else "replace one person"

    @property
    def reach(self) -> float:
        """How far one person moves a sum of vectors of norm <= 1: the factor 2 of replace-one."""
        return 1.0 if self.law == "poisson" else 2.0

    def draw(self, population: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the cohort of one round, a part of `population`; it may be empty under Poisson.

        Drawing costs the same whether the population is a thousand or a million.
        """
        count = len(population)
        if self.law == "fixed":
            if count != self.users:
                raise SettingsError(
                    f"the accountant counts {self.users} people; the population has {count}"
                )
            return population[rng.choice(count, self.cohort, replace=False, shuffle=False)]
        # Independent coins are a binomial number of heads, spread uniformly.
        heads = int(rng.binomial(count, self.share))
        return population[rng.choice(count, heads, replace=False, shuffle=False)]
