"""All sums of a round as one vector: what a node codes, masks and sends."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from privrec.core.contribution import Shapes, shapes_of
from privrec.core.phase import Phase, Told
from privrec.data.clients import Clients
from privrec.errors import FederationError
from privrec.flower.coding import Coding
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.types import F64, Leaf

COUNT = "count of updates within the bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How the sums of a phase lie in one vector, names in order.

    A matrix r rᵀ is symmetric, so only its upper triangle is sent. Where adaptive clipping needs a
    count, it is the last number, times `count_weight`: so one noise fits all numbers.
    """

    shapes: Shapes
    count_weight: float = 0.0

    @property
    def size(self) -> int:
        """How many numbers there are."""
        return sum(map(_numbers, self.shapes.values())) + bool(self.count_weight)

    def bound(self, clip_norm: float) -> float:
        """Return the length of what one person adds, with her half in the count."""
        return math.hypot(clip_norm, self.count_weight / 2)

    def parts(self, total: CohortTotal, people: int) -> dict[str, Leaf]:
        """Return the sums over `people` people as one row of numbers for each name."""
        if total.update.keys() != self.shapes.keys():
            raise FederationError("the sums do not have the names that the round expects")
        rows = {n: _flat(np.asarray(total.update[n]), self.shapes[n]) for n in sorted(self.shapes)}
        if self.count_weight:
            balance = total._replace(clients=people).balance
            rows[COUNT] = np.array([self.count_weight * balance])
        return rows

    def vector(self, total: CohortTotal, people: int) -> F64:
        """Return the sums over `people` people as one vector."""
        rows = list(self.parts(total, people).values())
        return np.concatenate([np.asarray(row, np.float64) for row in rows] or [np.zeros(0)])

    @property
    def sizes(self) -> dict[str, int]:
        """The number of numbers of each part, in order."""
        found = {name: _numbers(self.shapes[name]) for name in sorted(self.shapes)}
        return {**found, COUNT: 1} if self.count_weight else found

    def total(self, vector: Leaf, *, noised: bool = False) -> CohortTotal:
        """Return the sums that lie in a vector."""
        ends = np.cumsum([0, *self.sizes.values()])
        rows = {
            name: vector[begin:end]
            for name, begin, end in zip(self.sizes, ends[:-1], ends[1:], strict=True)
        }
        return self.together(rows, noised=noised)

    def together(self, rows: Mapping[str, Leaf], *, noised: bool = False) -> CohortTotal:
        """Return the sums from one row of numbers for each name."""
        update = {name: _unflat(rows[name], shape) for name, shape in self.shapes.items()}
        within = float(rows[COUNT][0]) / self.count_weight if self.count_weight else None
        return CohortTotal(update, within=within, noised=noised)


def sheet_of(phase: Phase, told: Told, nobody: Clients, round_index: int, clip: float) -> Sheet:
    """Return how the sums of a round lie in a vector.

    What a device without data would send has their names and shapes.
    """
    shapes = shapes_of(phase.device.contribute(told, nobody, round_index))
    if shapes is None:
        raise ValueError(f"{phase.name}: `contribute` returns an unsound contribution")
    return Sheet(shapes=shapes, count_weight=_count_weight(phase.aggregator, clip))


def coding_of(people: int, phase: Phase, sheet: Sheet, clip_norm: float) -> Coding:
    """Return the fixed-point coding of a round's sums, over at most `people` people."""
    return Coding(
        size=sheet.size,
        bound=sheet.bound(clip_norm),
        people=max(people, 1),
        norm=phase.aggregator.norm,
    )


def _count_weight(aggregator: Aggregator, clip_norm: float) -> float:
    """Return by how much the count is multiplied, so that it needs the same noise as the rest."""
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
    if shape[0] != "outer":
        return leaf.ravel()
    row = np.empty(_numbers(shape), leaf.dtype)
    for number, place in _upper(shape[1][0]):
        row[place] = leaf[number, number:]
    return row


def _unflat(numbers: Leaf, shape: tuple[str, tuple[int, ...]]) -> Leaf:
    part, dims = shape
    if part == "triangle":
        return numbers
    if part != "outer":
        return numbers.reshape(dims)
    full = np.zeros((dims[0], dims[0]), numbers.dtype)
    for number, place in _upper(dims[0]):
        full[number, number:] = numbers[place]
    diagonal = np.diagonal(full).copy()
    full += full.T
    np.fill_diagonal(full, diagonal)
    return full


def _upper(size: int) -> Iterator[tuple[int, slice]]:
    """Yield each row of an upper triangle, and its place in the row of all its numbers."""
    begin = 0
    for number in range(size):
        yield number, slice(begin, begin + size - number)
        begin += size - number


def clipped_again(
    sheet: Sheet, rows: Mapping[str, Leaf], clip_norm: float, people: int, norm: str
) -> tuple[dict[str, Leaf], bool]:
    """Return a node's plain sums, no longer than `people` bounded contributions; and if they were.

    A sum of symmetric matrices is longer than its upper triangle, so it counts twice what is above
    its diagonal.
    """
    found = dict(rows)
    most, length = clip_norm * people, _length(sheet, rows, norm)
    was_long = math.isfinite(most) and length > most * (1 + 1e-9)
    if was_long:
        found = {n: row if n == COUNT else row * (most / length) for n, row in rows.items()}
    if COUNT in rows:
        half = people / 2 * sheet.count_weight
        found[COUNT] = np.clip(rows[COUNT], -half, half)
        was_long = was_long or bool(found[COUNT][0] != rows[COUNT][0])
    return found, was_long


def _length(sheet: Sheet, rows: Mapping[str, Leaf], norm: str) -> float:
    power, total = 1 if norm == "l1" else 2, 0.0
    for name, shape in sheet.shapes.items():
        with np.errstate(over="ignore"):  # An infinite length shortens a sum to nothing.
            row = np.abs(np.asarray(rows[name], np.float64)) ** power
            total += float(row.sum())
        if shape[0] == "outer":
            ends = np.array([place.start for _, place in _upper(shape[1][0])])
            total += float(row.sum() - row[ends].sum())
    return total if norm == "l1" else math.sqrt(total)
