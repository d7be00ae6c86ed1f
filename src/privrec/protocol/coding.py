"""Sums of people as whole numbers modulo 2^64, so that masks of the same numbers hide them.

Discrete Gaussian noise that every node adds a share of, and how large a share must be.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privrec.errors import SettingsError
from privrec.types import F64, BoolArray, IntArray, Norm

Words: TypeAlias = npt.NDArray[np.uint64]

MOST_PEOPLE = 2**29
"""With 2^33 units for each person and 2^62 units for all, there is room for so many."""
LEAST_SHRINK = 0.99
"""Chosen by hand: a coding that takes more than 1 % off every sum has too coarse a unit."""
# Chosen by hand: wide enough for any clipping bound, and far from the ends of float64.
_BOUNDS = (2.0**-200, 2.0**200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """A fixed-point code for vectors of `size` numbers, modulo 2^64.

    One person's part of a sum has at most the length `bound` in `norm` (`math.inf`: not bounded),
    and all sums together have at most `people` people. The code follows from these numbers:

    - Range: a unit is 2^-32 of the bound, rounded down to a power of two, so one person adds less
      than 2^33 units to a coordinate.
    - Overflow: a node with p of P people sends at most p * floor(2^62 / P) units. All nodes
      together send at most 2^62, and a signed word holds 2^63: the other half is room for noise.
      As P <= 2^29, a person has at least 2^33 units, so a bounded sum is never cut off.
    - Rounding: it moves each coordinate by half a unit at most, in the sum with a person and in
      the sum without. `shrink` makes room for this, as in Kairouz, Liu and Steinke (2021),
      section 4, but for rounding to nearest, in the worst case.

    The rounding errors of the sum that is given to `encode` are not part of this.
    """

    size: int
    bound: float
    people: int
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingsError(f"`size` must be >= 1; got {self.size}")
        if not 1 <= self.people <= MOST_PEOPLE:
            raise SettingsError(f"`people` must be in 1 … {MOST_PEOPLE}; got {self.people}")
        if self.norm not in ("l1", "l2"):
            raise SettingsError(f"`norm` must be 'l1' or 'l2'; got {self.norm!r}")
        if not self.bound > 0:
            raise SettingsError(f"`bound` must be > 0; got {self.bound}")
        if math.isfinite(self.bound) and not _BOUNDS[0] <= self.bound <= _BOUNDS[1]:
            raise SettingsError(f"`bound` must be in 2^-200 … 2^200, or inf; got {self.bound}")
        if self.shrink < LEAST_SHRINK:
            raise SettingsError(
                f"`size` is too large: rounding {self.size} numbers would take more than 1 % off"
            )

    @property
    def unit(self) -> float:
        """The value of 1: 2^(floor(log2 bound) - 32), or 2^-32 without a bound."""
        if math.isinf(self.bound):
            return 2.0**-32
        # frexp is exact, a logarithm is not: bound = m * 2^e with 1/2 <= m < 1.
        return math.ldexp(1.0, math.frexp(self.bound)[1] - 1 - 32)

    @property
    def shrink(self) -> float:
        """The factor on every sum before it is rounded; 1.0 without a bound.

        Rounding two sums adds at most one unit to each coordinate of their difference: sqrt(size)
        units to its l2 length, `size` units to its l1 length. With (1 - x) * bound for
        x >= sqrt(size) * unit / bound (l2) or size * unit / bound (l1), one person still moves the
        coded sum by at most bound / unit. x is the next power of two, so that `encode` can work
        without errors of float64.
        """
        if math.isinf(self.bound):
            return 1.0
        units = math.sqrt(self.size) if self.norm == "l2" else float(self.size)
        return 1.0 - math.ldexp(1.0, math.frexp(units * (self.unit / self.bound))[1])

    def encode(self, vector: F64, people: int) -> Words:
        """Return the sum of `people` people as words, (size,), in two's complement.

        Every coordinate is shrunk, rounded to the nearest whole number of units and cut off at
        +-people * floor(2^62 / self.people).
        """
        found = np.asarray(vector, np.float64)
        if found.shape != (self.size,):
            raise ValueError(f"`vector` must have the shape ({self.size},); got {found.shape}")
        if not np.isfinite(found).all():
            raise ValueError("`vector` must be finite")
        if not 0 <= people <= self.people:
            raise ValueError(f"`people` must be in 0 … {self.people}; got {people}")
        most = people * (2**62 // self.people)
        # A huge number divided by the unit would leave float64, and one above 2^63 a word. A fifth
        # more than the most is still more than that when it is shrunk.
        far = 1.2 * most * self.unit
        units = np.clip(found, -far, far) / self.unit
        # Both factors are powers of two: `units` and `loss` are exact, and so are their parts.
        loss = units * (1.0 - self.shrink)
        whole, whole_loss = np.rint(units), np.rint(loss)
        rest = np.rint((units - whole) - (loss - whole_loss))
        coded = whole.astype(np.int64) - whole_loss.astype(np.int64) + rest.astype(np.int64)
        return np.clip(coded, -most, most).view(np.uint64)

    def decode(self, coded: Words) -> F64:
        """Return the numbers of a sum of words, (size,): two's complement, times the unit."""
        if coded.dtype != np.uint64 or coded.shape != (self.size,):
            raise ValueError(
                f"`coded` must be uint64 of the shape ({self.size},); got {coded.dtype} of"
                f" {coded.shape}"
            )
        return np.ascontiguousarray(coded).view(np.int64).astype(np.float64) * self.unit

    def error(self, nodes: int, largest: float) -> float:
        """Return how far a coordinate of the decoded sum of `nodes` nodes can be from the true one.

        The true coordinate is in -largest … largest. The error has three parts: half a unit of
        rounding for each node, what `shrink` takes off, and one rounding of the total to float64.
        It holds as long as no node is cut off, which is always so with a finite bound.
        """
        # 2^-50 more than a half: two numbers close to a half are subtracted before rounding.
        rounding = nodes * self.unit * (0.5 + 2.0**-50)
        return rounding + (1.0 - self.shrink) * largest + (largest + rounding) * 2.0**-52


_Words: TypeAlias = npt.NDArray[np.uint64]
_Doubles: TypeAlias = npt.NDArray[np.float64]
_Source: TypeAlias = Callable[[int], _Words]

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
    distance: _Doubles = np.abs(laplace).astype(np.float64) - variance / scale
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


def _bernoulli_exp(words: _Source, exponents: _Doubles) -> BoolArray:
    """Return true with probability exp(-x) for every x >= 0 (algorithm 1).

    exp(-x) is exp(-1) floor(x) times, times exp(-rest), so a comparison with 53 bits is always
    with a number above 1/e.
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
    return nodes - _part(nodes, missing)


def least_honest(nodes: int, missing: float, colluding: float) -> int:
    """Return how many honest nodes remain at least: their noise is what protects people.

    Colluding nodes may tell the server their share of the noise, or add none.

    >>> least_honest(10, 0.3, 0.1)
    6
    """
    if not 0.0 <= colluding < 1.0:
        raise SettingsError(f"`colluding` must be in [0, 1); got {colluding}")
    honest = least_survivors(nodes, missing) - _part(nodes, colluding)
    if honest < 1:
        raise SettingsError(
            f"with {nodes} nodes, `missing` {missing:g} and `colluding` {colluding:g} leave no"
            " honest node to add noise"
        )
    return honest


def _part(nodes: int, fraction: float) -> int:
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
    found = 10.0 * float(np.exp(-2.0 * math.pi**2 * deviation**2 * k / (k + 1.0)).sum())
    if not deviation > 0.0 or not found < MOST_GAP:
        raise SettingsError(
            f"`deviation` is too small for a sum of {nodes} nodes: got {deviation:g} units, which"
            f" is {found:.1e} from one discrete Gaussian"
        )
    return found
