"""Sources of noise: a seeded generator for experiments, else a cryptographic generator."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privrec.types import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSource:
    """Standard noise: `normal(n)` of variance 1 and `laplace(n)` of scale 1, in float64."""

    normal: Callable[[int], F64]
    laplace: Callable[[int], F64]


def seeded(rng: np.random.Generator) -> NoiseSource:
    """Return repeatable noise. Anyone with the seed can remove it: for experiments only."""
    return NoiseSource(
        normal=rng.standard_normal,
        laplace=lambda size: rng.laplace(size=size),
    )


def secure() -> NoiseSource:
    """Return noise from AES-256 in counter mode under a fresh key of the operating system.

    It is written by hand because numpy's generators are not cryptographic, and no maintained
    library draws floating-point noise from a cryptographic generator.
    """
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()

    def uniform(size: int) -> F64:
        """Return numbers in (0, 1]: 53 random bits plus one half, times 2^-53, rounded."""
        words = np.frombuffer(stream.update(bytes(8 * size)), np.uint64)
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def box_muller(size: int) -> F64:
        half = (size + 1) // 2
        radius = np.sqrt(-2.0 * np.log(uniform(half)))
        angle = 2.0 * np.pi * uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def normal(size: int) -> F64:
        # The lowest bits of a single draw can reveal its value; a sum of four draws hides them.
        return 0.5 * (box_muller(size) + box_muller(size) + box_muller(size) + box_muller(size))

    def laplace(size: int) -> F64:
        # The difference of two exponentials.
        return np.log(uniform(size)) - np.log(uniform(size))

    return NoiseSource(normal=normal, laplace=laplace)
