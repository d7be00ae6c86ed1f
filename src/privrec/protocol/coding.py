"""Write the sums of a round as integers modulo 2^64, so that uniform random masks can hide them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from privrec.core.contribution import Shapes, shapes_of
from privrec.core.phase import Phase, Told
from privrec.data.clients import Clients
from privrec.errors import FederationError, SettingsError
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.protocol.masks import Words
from privrec.types import F64, BoolArray, Leaf, Norm

MOST_PEOPLE = 2**29
"""The most people in a federation: one person needs up to 2^33 of the 2^62 units of a sum."""
LEAST_SHRINK = 0.99
"""The smallest allowed `Coding.shrink`: rounding may make each sum at most 1 % smaller. Chosen by
hand."""
# The allowed bounds keep results far from the ends of float64. Chosen by hand.
_BOUNDS = (2.0**-200, 2.0**200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """A fixed-point code for vectors of `size` numbers: integers modulo 2^64 that count units.

    The vector of one person has at most the length `bound` in `norm` (`math.inf`: not bounded). The
    sum over all nodes is over at most `people` people. These numbers decide the code:

    - Range: a unit is 2^-32 of the bound, rounded down to a power of two. So one person adds less
      than 2^33 units to a coordinate.
    - Overflow: a node with p of P people sends at most p * floor(2^62 / P) units, and all nodes
      together at most 2^62. A signed integer of 64 bits holds 2^63; the other half is for noise. As
      P <= 2^29, each person has at least 2^33 units, so a bounded sum is never cut off.
    - Rounding: each coordinate changes by at most half a unit, both in the sum with a person and
      in the sum without this person. `shrink` makes room for these changes, as in Kairouz, Liu
      and Steinke (2021), section 4, but for rounding to nearest, in the worst case.

    `shrink` makes no room for the rounding errors that the input of `encode` already has.
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
        """The value of one unit: 2^(floor(log2 bound) - 32), or 2^-32 without a bound."""
        if math.isinf(self.bound):
            return 2.0**-32
        # Unlike a logarithm, frexp has no rounding error: bound = m * 2^e with 1/2 <= m < 1.
        return math.ldexp(1.0, math.frexp(self.bound)[1] - 1 - 32)

    @property
    def shrink(self) -> float:
        """The factor 1 - x by which every sum is multiplied before rounding; 1.0 without a bound.

        Rounding two sums adds at most one unit to each coordinate of their difference: sqrt(size)
        units to its l2 length, and `size` units to its l1 length. If x >= sqrt(size) * unit / bound
        (l2) or x >= size * unit / bound (l1), one person still moves the coded sum by at most bound
        / unit. x is rounded up to a power of two, so that `encode` can multiply without rounding
        errors of float64.
        """
        if math.isinf(self.bound):
            return 1.0
        units = math.sqrt(self.size) if self.norm == "l2" else float(self.size)
        return 1.0 - math.ldexp(1.0, math.frexp(units * (self.unit / self.bound))[1])

    def encode(self, vector: F64, people: int) -> Words:
        """Return the sum over `people` people as uint64, (size,), in units, in two's complement.

        Every coordinate is multiplied by `shrink`, rounded to the nearest whole number of units and
        clipped to +-people * floor(2^62 / self.people).
        """
        numbers = np.asarray(vector, np.float64)
        if numbers.shape != (self.size,):
            raise ValueError(f"`vector` must have the shape ({self.size},); got {numbers.shape}")
        if not np.isfinite(numbers).all():
            raise ValueError("`vector` must be finite")
        if not 0 <= people <= self.people:
            raise ValueError(f"`people` must be in 0 … {self.people}; got {people}")
        most = people * (2**62 // self.people)
        # A huge number divided by the unit would overflow float64, or an integer of 64 bits. So
        # numbers are clipped to 1.2 * `most` units here, and to `most` in the last line.
        far = 1.2 * most * self.unit
        units = np.clip(numbers, -far, far) / self.unit
        # The unit and 1 - shrink are powers of two. So `units`, `loss` and their whole and
        # fractional parts have no rounding errors.
        loss = units * (1.0 - self.shrink)
        whole, whole_loss = np.rint(units), np.rint(loss)
        rest = np.rint((units - whole) - (loss - whole_loss))
        coded = whole.astype(np.int64) - whole_loss.astype(np.int64) + rest.astype(np.int64)
        return np.clip(coded, -most, most).view(np.uint64)

    def decode(self, coded: Words) -> F64:
        """Return a coded sum, (size,), as float64: its signed integers times the unit."""
        if coded.dtype != np.uint64 or coded.shape != (self.size,):
            raise ValueError(
                f"`coded` must be uint64 of the shape ({self.size},); got {coded.dtype} of"
                f" {coded.shape}"
            )
        return np.ascontiguousarray(coded).view(np.int64).astype(np.float64) * self.unit


_COUNT = "count of updates within the bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLayout:
    """The positions of a round's sums in one vector. The sums are sorted by name.

    A matrix r rᵀ is symmetric, so only its upper triangle is sent. If clipping is adaptive, the
    last number of the vector is the count of updates within the bound, times `count_weight`. With
    this factor, the count needs noise of the same scale as the other numbers.
    """

    shapes: Shapes
    count_weight: float = 0.0

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each sum has in the vector, in the order of the vector."""
        sizes = {name: _numbers(self.shapes[name]) for name in sorted(self.shapes)}
        return {**sizes, _COUNT: 1} if self.count_weight else sizes

    @property
    def size(self) -> int:
        """How many numbers the vector has."""
        return sum(self.sizes.values())

    def bound(self, clip_norm: float) -> float:
        """Return the largest L2 norm of one person's vector; she adds +-1/2 to the count."""
        return math.hypot(clip_norm, self.count_weight / 2)

    def vector(self, total: CohortTotal, people: int) -> F64:
        """Return the sums over `people` people as one vector."""
        if total.update.keys() != self.shapes.keys():
            raise FederationError("the sums do not have the names that the round expects")
        parts = [_flat(np.asarray(total.update[n]), self.shapes[n]) for n in sorted(self.shapes)]
        if self.count_weight:
            balance = total._replace(clients=people).balance
            parts.append(np.array([self.count_weight * balance]))
        vector = np.concatenate([np.asarray(part, np.float64) for part in parts])
        if vector.shape != (self.size,):
            raise FederationError("the sums do not have the shapes that the round expects")
        return vector

    def total(self, vector: Leaf, *, noised: bool = False) -> CohortTotal:
        """Return the sums in a vector by name: the inverse of the method `vector`."""
        rows = self._rows(vector)
        update = {name: _unflat(rows[name], shape) for name, shape in self.shapes.items()}
        within = float(rows[_COUNT][0]) / self.count_weight if self.count_weight else None
        return CohortTotal(update, within=within, noised=noised)

    def clipped(self, vector: Leaf, clip_norm: float, people: int, norm: str) -> tuple[Leaf, bool]:
        """Return a node's sums, clipped to `people` times the bound, and whether they were longer.

        `vector` has the sums of one node over `people` people.
        """
        vector = vector.copy()
        rows = self._rows(vector)
        most, length = clip_norm * people, self._length(rows, norm)
        was_long = math.isfinite(most) and length > most * (1 + 1e-9)
        if was_long:
            for name in self.shapes:
                rows[name] *= most / length
        if self.count_weight:
            half, count = people / 2 * self.count_weight, rows[_COUNT]
            was_long = was_long or bool(abs(count[0]) > half)
            np.clip(count, -half, half, out=count)
        return vector, was_long

    def _rows(self, vector: Leaf) -> dict[str, Leaf]:
        """Return by name a view of the numbers of each sum in `vector`."""
        ends = np.cumsum([0, *self.sizes.values()])
        return {
            name: vector[begin:end]
            for name, begin, end in zip(self.sizes, ends[:-1], ends[1:], strict=True)
        }

    def _length(self, rows: Mapping[str, Leaf], norm: str) -> float:
        """Return the length of all sums together; a matrix counts with both of its triangles."""
        power, total = 1 if norm == "l1" else 2, 0.0
        for name, shape in self.shapes.items():
            with np.errstate(over="ignore"):  # `clipped` replaces a sum of infinite length by 0.
                total += float((np.abs(_unflat(rows[name], shape)) ** power).sum())
        return total if norm == "l1" else math.sqrt(total)


def layout_of(
    phase: Phase, told: Told, nobody: Clients, round_index: int, clip_norm: float
) -> SumLayout:
    """Return the positions of a round's sums in one vector.

    A device without data would send sums of the same names and shapes. `told` has the arrays that
    the server sends to all devices, and `nobody` is one person without data.
    """
    shapes = shapes_of(phase.device.contribute(told, nobody, round_index))
    if shapes is None:
        raise ValueError(f"{phase.name}: `contribute` returns an unsound contribution")
    return SumLayout(shapes=shapes, count_weight=_count_weight(phase.aggregator, clip_norm))


def coding_of(people: int, phase: Phase, layout: SumLayout, clip_norm: float) -> Coding:
    """Return the fixed-point code for a round's sums over at most `people` people."""
    return Coding(
        size=layout.size,
        bound=layout.bound(clip_norm),
        people=max(people, 1),
        norm=phase.aggregator.norm,
    )


def _count_weight(aggregator: Aggregator, clip_norm: float) -> float:
    """Return the factor on the count that makes its noise as large as that on the sums.

    It is 0.0 if there is no count.
    """
    if aggregator.clip_quantile is None:
        return 0.0
    scale = aggregator.count_scale
    return aggregator.noise_scale(clip_norm) / scale if scale else clip_norm


def _numbers(shape: tuple[str, tuple[int, ...]]) -> int:
    part, dims = shape
    if part in ("outer", "triangle"):
        return dims[0] * (dims[0] + 1) // 2
    return math.prod(dims)


def _flat(leaf: Leaf, shape: tuple[str, tuple[int, ...]]) -> Leaf:
    return leaf[_upper(shape[1][0])] if shape[0] == "outer" else leaf.ravel()


def _unflat(numbers: Leaf, shape: tuple[str, tuple[int, ...]]) -> Leaf:
    part, dims = shape
    if part == "triangle":
        return numbers
    if part != "outer":
        return numbers.reshape(dims)
    full = np.empty((dims[0], dims[0]), numbers.dtype)
    full[_upper(dims[0])] = numbers
    full.T[_upper(dims[0])] = numbers
    return full


def _upper(size: int) -> BoolArray:
    return np.tri(size, dtype=np.bool_).T
