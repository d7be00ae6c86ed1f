"""Draw discrete Gaussian noise, of which each node adds a share; compute the size of a share."""

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
"""With at most this standard deviation, Laplace draws are below 2^53 and so exact in float64. A
larger draw has a probability of e^-255."""
MOST_GAP = 1e-30
"""`gap` must be smaller. Even times all rounds and numbers of a training, this is far below any
`delta`."""
# floor(2^64 / e): up to 2^-64, a random uint64 is smaller with probability 1/e.
_ONE_OVER_E = np.uint64(6786177901268885274)
# Draws at a time, to limit the memory. Chosen by hand.
_BATCH = 2**18


def discrete_gaussian(deviation: float, size: int) -> IntArray:
    """Return `size` independent draws x with probability ~ exp(-x^2 / (2 deviation^2)), int64.

    This is algorithm 3 of Canonne, Kamath and Steinke (2020): it draws from a discrete Laplace
    distribution (algorithm 2) and rejects some of the draws. All random bits come from AES-256 in
    counter mode, with a new key from the operating system.

    Uniform numbers, signs and geometric numbers have exact probabilities, up to 2^-62 for the
    constant 1/e. Each draw also needs two comparisons of 53 random bits with exp(-f), f in [0, 1),
    which is computed correctly within a factor 1 +- 2^-49. The whole part of a larger exponent is
    handled separately (algorithm 1), so random bits are never compared with a small probability.
    With the rounding of the exponents, every number within 10 deviations has the correct
    probability within a factor 1 +- 2^-44. For each draw, the total variation distance from the
    exact distribution is less than 2^-46.
    """
    if not 1.0 <= deviation <= LARGEST_DEVIATION:
        raise SettingsError(f"`deviation` must be in 1 … 2^45; got {deviation}")
    if size < 0:
        raise SettingsError(f"`size` must be >= 0; got {size}")
    words = _words()
    drawn = np.empty(size, np.int64)
    done = 0
    while done < size:
        # About 0.48 of the proposals are accepted, or fewer if the deviation is small.
        proposals = min(_BATCH, 2 * (size - done) + 64)
        kept = _accepted(words, proposals, deviation)[: size - done]
        drawn[done : done + len(kept)] = kept
        done += len(kept)
    return drawn


def _accepted(words: _Source, proposals: int, deviation: float) -> IntArray:
    """Return the accepted ones of `proposals` Laplace draws: discrete Gaussian (algorithm 3)."""
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
    # Zero would be drawn as +0 and as -0, so twice too often.
    keep = ~(negative & (size == 0))
    signed: IntArray = np.where(negative, -size, size)[keep]
    return signed


def _below(words: _Source, size: int, limit: int) -> IntArray:
    """Return at most `size` whole numbers, uniform in 0 … limit - 1.

    A draw has the number of bits of limit - 1; too large draws are rejected.
    """
    shift = np.uint64(64 - max(1, (limit - 1).bit_length()))
    drawn = (words(size) >> shift).astype(np.int64)
    return drawn[drawn < limit]


def _bernoulli_exp(words: _Source, exponents: F64) -> BoolArray:
    """Return for each exponent x >= 0 true with probability exp(-x) (algorithm 1).

    As exp(-x) = exp(-1)^floor(x) · exp(-rest), 53 random bits are compared only with exp(-rest),
    which is larger than 1/e.
    """
    whole = np.floor(exponents)
    passed = _geometric(words, len(exponents)) >= whole
    chance = np.exp(whole - exponents) * 2.0**53
    return passed & ((words(len(exponents)) >> np.uint64(11)).astype(np.float64) < chance)


def _geometric(words: _Source, size: int) -> IntArray:
    """Return `size` geometric numbers: successes of probability 1/e before the first failure."""
    count = np.zeros(size, np.int64)
    running = np.arange(size)
    while len(running):
        running = running[words(len(running)) < _ONE_OVER_E]
        count[running] += 1
    return count


def _words() -> _Source:
    """Return a source of random uint64: AES-256 in counter mode, with a new random key."""
    stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
    return lambda size: np.frombuffer(stream.update(bytes(8 * size)), np.uint64)


def least_survivors(nodes: int, missing: float) -> int:
    """Return the least number of nodes that remain, if the fraction `missing` may drop out.

    >>> least_survivors(10, 0.3)
    7
    """
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    if not 0.0 <= missing < 1.0:
        raise SettingsError(f"`missing` must be in [0, 1); got {missing}")
    return nodes - whole_nodes(nodes, missing)


def least_honest(nodes: int, missing: float, colluding: float) -> int:
    """Return the least number of honest nodes that remain.

    Only their noise protects people. A colluding node may tell the server its share of the noise,
    or add no noise.

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
    """Return a fraction of the nodes as a number of nodes, rounded down."""
    # 0.29 * 100 is below 29 in float64, so 1e-9 is added. Counting one node more as missing or
    # colluding means more noise, never less.
    return math.floor(fraction * nodes + 1e-9)


def node_deviation(scale: float, *, nodes: int, missing: float, colluding: float) -> float:
    """Return the standard deviation of one node's share of the noise, in the unit of `scale`.

    It is scale / sqrt(least_honest). So the shares of the least number of honest nodes add up to
    the standard deviation `scale`. If more nodes remain, the sum has more noise.
    """
    if not scale > 0.0:
        raise SettingsError(f"`scale` must be > 0; got {scale}")
    return scale / math.sqrt(least_honest(nodes, missing, colluding))


def gap(deviation: float, nodes: int) -> float:
    """Return how far the sum of `nodes` discrete Gaussians is from one discrete Gaussian.

    It is tau = 10 * sum over k < nodes of exp(-2 pi^2 deviation^2 k / (k + 1)) (Kairouz, Liu and
    Steinke 2021, theorem 1). For every value of one number, the logarithm of the ratio of its two
    probabilities is at most tau. `deviation` is the standard deviation of one node's noise. Raises
    `SettingsError` if tau is 1e-30 or more.
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
