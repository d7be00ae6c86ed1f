"""All sums of a round as one vector: what a node codes, masks and sends."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privrec.core.contribution import Shapes, shapes_of
from privrec.core.phase import Phase, Told
from privrec.data.clients import Clients
from privrec.errors import FederationError
from privrec.flower.coding import Coding
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.types import Leaf

Doubles = npt.NDArray[np.float64]


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

    def vector(self, total: CohortTotal, people: int) -> Doubles:
        """Return the sums over `people` people as one vector."""
        if total.update.keys() != self.shapes.keys():
            raise FederationError("the sums do not have the names that the round expects")
        parts = [_flat(np.asarray(total.update[n]), self.shapes[n]) for n in sorted(self.shapes)]
        if self.count_weight:
            parts.append(np.array([self.count_weight * total._replace(clients=people).balance]))
        return np.concatenate(parts) if parts else np.zeros(0)

    def total(self, vector: Doubles, *, noised: bool = False) -> CohortTotal:
        """Return the sums that lie in a vector."""
        begin, update = 0, dict[str, Leaf]()
        for name in sorted(self.shapes):
            size = _numbers(self.shapes[name])
            update[name] = _unflat(vector[begin : begin + size], self.shapes[name])
            begin += size
        within = float(vector[-1]) / self.count_weight if self.count_weight else None
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


def _flat(leaf: Leaf, shape: tuple[str, tuple[int, ...]]) -> Doubles:
    if shape[0] == "outer":
        leaf = leaf[np.triu_indices(shape[1][0])]
    return np.asarray(leaf, np.float64).ravel()


def _unflat(numbers: Doubles, shape: tuple[str, tuple[int, ...]]) -> Leaf:
    part, dims = shape
    if part == "triangle":
        return numbers
    if part == "outer":
        full = np.zeros((dims[0], dims[0]))
        rows, columns = np.triu_indices(dims[0])
        full[rows, columns] = numbers
        full[columns, rows] = numbers
        return full
    return numbers.reshape(dims)


def clipped_again(vector: Doubles, bound: float, people: int, norm: str) -> tuple[Doubles, bool]:
    """Return a node's plain sum, no longer than `people` bounded contributions; and if it was."""
    length = float(np.abs(vector).sum() if norm == "l1" else np.linalg.norm(vector))
    most = bound * people
    if not math.isfinite(most) or length <= most * (1 + 1e-9):
        return vector, False
    return vector * (most / length), True
