"""Discrete Gaussian noise of which every node adds a share, and how large a share must be."""

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privrec.errors import SettingsError
from privrec.protocol.masks import Words
from privrec.types import F64, BoolArray, IntArray

_Source: TypeAlias = Callable[[int], Words]

LARGEST_DEVIATION = 2.0**45
"""Up to this, a Laplace draw is below 2^53 and exact in float64, but for a chance of e^-255."""
MOST_GAP = 1e-30
"""The largest `gap`: far below any `delta`, even times the rounds and numbers of a training."""
# floor(2^64 / e): a word is below it with probability 1/e, up to 2^-64.
_ONE_OVER_E = np.uint64(6786177901268885274)
# Draws at a time, to bound the memory (chosen by hand).
_BATCH = 2**18


def discrete_gaussian(deviation: float, size: int) -> IntArray:
    """Return `size` independent draws x with probability ~ exp(-x^2 / (2 deviation^2)), int64.

    This is algorithm 3 of Canonne, Kamath and Steinke (2020): draws from a discrete Laplace law
    (algorithm 2), of which some are rejected. All randomness is AES-256 in counter mode under a
    fresh key of the operating system.

    Uniform numbers, signs and geometric numbers are exact, up to 2^-62 for the constant 1/e. Each
    draw also needs two comparisons of 53 random bits with exp(-f), f in [0, 1), which is known
    within a factor 1 +- 2^-49. Larger exponents are split into whole parts (algorithm 1), so no
    small probability is compared. With the rounding of the exponents themselves, every number
    within 10 deviations has the correct probability within a factor 1 +- 2^-44, and the total
    variation from the exact law is less than 2^-46 for each number.
    """
    if not 1.0 <= deviation <= LARGEST_DEVIATION:
        raise SettingsError(f"`deviation` must be in 1 … 2^45; got {deviation}")
    if size < 0:
        raise SettingsError(f"`size` must be >= 0; got {size}")
    words = _words()
    drawn = np.empty(size, np.int64)
    done = 0
    while done < size:
        # About 0.48 of the proposals remain, or fewer with a small deviation.
        proposals = min(_BATCH, 2 * (size - done) + 64)
        kept = _accepted(words, proposals, deviation)[: size - done]
        drawn[done : done + len(kept)] = kept
        done += len(kept)
    return drawn


def _accepted(words: _Source, proposals: int, deviation: float) -> IntArray:
    """Return those of `proposals` Laplace draws that the Gaussian keeps (algorithm 3)."""
    scale = math.floor(deviation) + 1
    laplace = _laplace(words, proposals, scale)
    variance = deviation * deviation
    distance: F64 = np.abs(laplace).astype(np.float64) - variance / scale
    return laplace[_bernoulli_exp(words, distance * distance / (2.0 * variance))]


def _laplace(words: _Source, proposals: int, scale: int) -> IntArray:
    """Return draws with probability ~ exp(-|x| / scale), at most `proposals` (algorithm 2)."""
    low = _below(words, proposals, scale)
    low = low[_bernoulli_exp(words, low / scale)]
    size = low + scale * _geometric(words, len(low))
    negative = (words(len(size)) >> np.uint64(63)).astype(np.bool_)
    # Otherwise zero would come twice as often, as +0 and as -0.
    keep = ~(negative & (size == 0))
    signed: IntArray = np.where(negative, -size, size)[keep]
    return signed


def _below(words: _Source, size: int, limit: int) -> IntArray:
    """Return whole numbers, each of 0 … limit - 1 with the same probability, at most `size`.

    Only as many random bits as `limit` has are used, and draws that are too large are left out.
    """
    shift = np.uint64(64 - max(1, (limit - 1).bit_length()))
    drawn = (words(size) >> shift).astype(np.int64)
    return drawn[drawn < limit]


def _bernoulli_exp(words: _Source, exponents: F64) -> BoolArray:
    """Return true with probability exp(-x) for every x >= 0 (algorithm 1).

    exp(-x) = exp(-1)^floor(x) · exp(-rest), so 53 random bits are compared only with a number
    above 1/e.
    """
    whole = np.floor(exponents)
    passed = _geometric(words, len(exponents)) >= whole
    chance = np.exp(whole - exponents) * 2.0**53
    return passed & ((words(len(exponents)) >> np.uint64(11)).astype(np.float64) < chance)


def _geometric(words: _Source, size: int) -> IntArray:
    """Return how often in a row an event of probability 1/e happens, for `size` rows."""
    count = np.zeros(size, np.int64)
    running = np.arange(size)
    while len(running):
        running = running[words(len(running)) < _ONE_OVER_E]
        count[running] += 1
    return count


def _words() -> _Source:
    """Return a source of random words: AES-256 in counter mode under a fresh key."""
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return lambda size: np.frombuffer(stream.update(bytes(8 * size)), np.uint64)


def least_survivors(nodes: int, missing: float) -> int:
    """Return how many of `nodes` nodes remain at least, if the fraction `missing` may drop out.

    >>> least_survivors(10, 0.3)
    7
    """
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    if not 0.0 <= missing < 1.0:
        raise SettingsError(f"`missing` must be in [0, 1); got {missing}")
    return nodes - whole_nodes(nodes, missing)


def least_honest(nodes: int, missing: float, colluding: float) -> int:
    """Return how many honest nodes remain at least: their noise is what protects people.

    Colluding nodes may tell the server their share of the noise, or add none.

    >>> least_honest(10, 0.3, 0.1)
    6
    """
    if not 0.0 <= colluding < 1.0:
        raise SettingsError(f"`colluding` must be in [0, 1); got {colluding}")
    honest = least_survivors(nodes, missing) - whole_nodes(nodes, colluding)
    if honest < 1:
        raise SettingsError(
            f"with {nodes} nodes, `missing` {missing:g} and `colluding` {colluding:g} leave no"
            " honest node to add noise"
        )
    return honest


def whole_nodes(nodes: int, fraction: float) -> int:
    """Return how many nodes a fraction of them is, rounded down."""
    # 0.29 * 100 is below 29 in float64; one node more to expect means more noise, never less.
    return math.floor(fraction * nodes + 1e-9)


def node_deviation(scale: float, *, nodes: int, missing: float, colluding: float) -> float:
    """Return the deviation of one node's share of the noise, in the unit of `scale`.

    The shares of as many honest nodes as remain at least add up to a deviation of `scale`:
    scale / sqrt(least_honest). If more remain, the sum has more noise than that.
    """
    if not scale > 0.0:
        raise SettingsError(f"`scale` must be > 0; got {scale}")
    return scale / math.sqrt(least_honest(nodes, missing, colluding))


def gap(deviation: float, nodes: int) -> float:
    """Return how far the sum of `nodes` discrete Gaussians is from one discrete Gaussian.

    It is tau = 10 * sum over k < nodes of exp(-2 pi^2 deviation^2 k / (k + 1)) of Kairouz, Liu and
    Steinke (2021), theorem 1: the logarithm of the ratio of any two probabilities is at most tau,
    for one number. `deviation` is that of one node. A gap of 1e-30 or more is refused.
    """
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    k = np.arange(1, nodes, dtype=np.float64)
    tau = 10.0 * float(np.exp(-2.0 * math.pi**2 * deviation**2 * k / (k + 1.0)).sum())
    if not deviation > 0.0 or not tau < MOST_GAP:
        raise SettingsError(
            f"`deviation` is too small for a sum of {nodes} nodes: got {deviation:g} units, which"
            f" is {tau:.1e} from one discrete Gaussian"
        )
    return tau
