"""One release: how its cohort is drawn, what the ledger counts of it, and where its noise is from.

The object that draws the cohort is the one that is accounted for.
"""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from privrec.errors import SettingsError, check_kind, one_of
from privrec.seeds import secret_choice, secret_coins
from privrec.types import F64, IntArray, Law, MechanismName

Adjacency = Literal["add or remove one person", "replace one person"]
LEAST_NOISE, MOST_NOISE = 1e-6, 1e6
"""Beyond these noise multipliers the accountant's sums overflow. Chosen by hand."""
LAWS: tuple[Law, ...] = get_args(Law)
MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How cohorts are sampled from `users` people, and the adjacency of the guarantee.

    `poisson` takes each person independently with probability cohort/users. `users` is a public
    number, so the probability does not depend on the true number of people. `fixed` takes exactly
    `cohort` people, uniformly, without replacement (the paper's choice). There `users` is the true
    number, which is the same in the two data sets that the guarantee compares.

    >>> Sampling(law="fixed", users=4800, cohort=30).adjacency
    'replace one person'
    """

    law: Law
    users: int
    cohort: int

    def __post_init__(self) -> None:
        one_of("sampling", self.law, LAWS)
        for name in ("users", "cohort"):
            check_kind(name, getattr(self, name), (int, np.integer), "a whole number")
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
        """How the two data sets that the guarantee compares differ."""
        return "add or remove one person" if self.law == "poisson" else "replace one person"

    @property
    def reach(self) -> float:
        """The sensitivity of a sum of vectors of norm <= 1: 1, or 2 for replace-one."""
        return 1.0 if self.law == "poisson" else 2.0

    def draw(self, population: IntArray, rng: np.random.Generator | None) -> IntArray:
        """Return the cohort of one round, a part of `population`; it may be empty under Poisson.

        If `rng` is None, the cohort is secret: the random numbers are the operating system's.
        """
        count = len(population)
        if self.law == "fixed":
            if count != self.users:
                raise SettingsError(
                    f"the accountant counts {self.users} people; the population has {count}"
                )
            if rng is None:
                return population[secret_choice(count, self.cohort)]
            return population[rng.choice(count, self.cohort, replace=False, shuffle=False)]
        if rng is None:
            return population[secret_coins(count, self.share)]
        # Poisson sampling is a binomial number of people, chosen uniformly.
        heads = int(rng.binomial(count, self.share))
        return population[rng.choice(count, heads, replace=False, shuffle=False)]


def check_noise(name: str, value: float, most: float = MOST_NOISE) -> None:
    """Raise for a multiplier that is no number, or that the accountant cannot count."""
    check_kind(name, value, (int, float), "a number")
    if value != 0 and not LEAST_NOISE <= value <= most:  # Refuses NaN too.
        raise SettingsError(
            f"`{name}` must be 0, or >= {LEAST_NOISE:g} and <= {most:g}; got {value!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A sum over a sampled cohort, published with noise (or without, if `none`).

    `noise_multiplier` is the scale of the noise on the sum divided by the sensitivity of the sum:
    clip_norm for Poisson sampling, twice that for fixed-size cohorts. The scale is the Gaussian's
    standard deviation with updates clipped in the L2 norm, or Laplace's b with updates clipped in
    the L1 norm. `quantile_multiplier` is the same for the count of clipped updates that adaptive
    clipping publishes from the same cohort.
    """

    mechanism: MechanismName
    sampling: Sampling
    noise_multiplier: float = 0.0
    quantile_multiplier: float | None = None

    def __post_init__(self) -> None:
        one_of("mechanism", self.mechanism, MECHANISMS)
        check_kind("sampling", self.sampling, Sampling, "a Sampling")
        for name in ("noise_multiplier", "quantile_multiplier"):
            # The noise on the count grows with the cohort; the joint multiplier does not.
            most = MOST_NOISE if name == "noise_multiplier" else 1e12
            check_noise(name, getattr(self, name) or 0.0, most)
        if self.mechanism == "none" and self.noise_multiplier:
            raise SettingsError("a release without a mechanism has no `noise_multiplier`")
        if self.quantile_multiplier is not None and self.mechanism != "gaussian":
            raise SettingsError("`clip_quantile` needs the Gaussian mechanism")

    @property
    def is_private(self) -> bool:
        """Whether there is noise on everything that is published."""
        return self.joint_multiplier > 0

    @property
    def joint_multiplier(self) -> float:
        """The multiplier of the update and the clipped count together, as one Gaussian release.

        Both come from one cohort, so they are one release of a longer vector. Its sensitivity, in
        units of the noise, is (z_u^-2 + z_q^-2)^(1/2).
        """
        if self.quantile_multiplier is None:
            return self.noise_multiplier
        if not (self.noise_multiplier and self.quantile_multiplier):
            return 0.0
        return 1 / math.hypot(1 / self.noise_multiplier, 1 / self.quantile_multiplier)

    def with_noise(self, factor: float) -> "Release":
        """Return the same release with `factor` times the noise."""
        count = self.quantile_multiplier
        return replace(
            self,
            noise_multiplier=factor * self.noise_multiplier,
            quantile_multiplier=None if count is None else factor * count,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a ledger line."""
        return {**asdict(self), "adjacency": self.sampling.adjacency}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSource:
    """Standard noise: `normal(n)` of variance 1 and `laplace(n)` of scale 1, in float64."""

    normal: Callable[[int], F64]
    laplace: Callable[[int], F64]


def seeded(rng: np.random.Generator) -> NoiseSource:
    """Return repeatable noise, for experiments only: anyone with the seed can remove it."""
    return NoiseSource(normal=rng.standard_normal, laplace=lambda size: rng.laplace(size=size))


def secure() -> NoiseSource:
    """Return noise from AES-256 in counter mode under a fresh key of the operating system.

    numpy's generators are not cryptographic, and no maintained library draws floating-point noise
    from a cryptographic one.
    """
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
    return NoiseSource(normal=partial(_normal, stream), laplace=partial(_laplace, stream))


def _normal(stream: CipherContext, size: int) -> F64:
    # The lowest bits of a single draw can reveal its value; a sum of four draws hides them.
    draws = (_box_muller(stream, size) for _ in range(3))
    return 0.5 * sum(draws, start=_box_muller(stream, size))


def _laplace(stream: CipherContext, size: int) -> F64:
    # The difference of two exponentials.
    return np.log(_uniform(stream, size)) - np.log(_uniform(stream, size))


def _box_muller(stream: CipherContext, size: int) -> F64:
    half = (size + 1) // 2
    radius = np.sqrt(-2.0 * np.log(_uniform(stream, half)))
    angle = 2.0 * np.pi * _uniform(stream, half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def _uniform(stream: CipherContext, size: int) -> F64:
    """Return numbers in (0, 1]: 53 random bits plus one half, times 2^-53, rounded."""
    bits = np.frombuffer(stream.update(bytes(8 * size)), np.uint64)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
