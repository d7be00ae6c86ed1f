"""Messages between the server and a node: a few words about them, and named arrays.

All sums of a round as one vector: what a node codes, masks and sends.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from privrec.core.contribution import Shapes, shapes_of, told_from_bytes, told_to_bytes
from privrec.core.phase import Phase, Told
from privrec.data.clients import Clients
from privrec.errors import FederationError, WireError
from privrec.privacy.aggregate import Aggregator, CohortTotal
from privrec.protocol.coding import Coding
from privrec.types import F64, Leaf

_ABOUT = "about"
_WORDS = 2**22
"""The most bytes of the part of a message that is not arrays: keys and shares of many nodes."""
SLACK = 2**16
"""The bytes that a message may have beyond its arrays."""


TOLD = "told "
"""Before the names of what the server tells, among the arrays of a message."""


class Message(NamedTuple):
    """What one side sends: `about` has plain values, `arrays` has numbers by name."""

    about: Mapping[str, Any]
    arrays: Mapping[str, Leaf]


def pack(about: Mapping[str, Any], arrays: Mapping[str, Leaf] | None = None) -> bytes:
    """Return the message as bytes. Byte strings in `about` become text."""
    words = json.dumps(about, default=_as_text, sort_keys=True).encode()
    return told_to_bytes({**(arrays or {}), _ABOUT: np.frombuffer(words, np.uint8)})


def unpack(content: bytes) -> Message:
    """Return the message of these bytes, or raise `WireError`."""
    arrays = told_from_bytes(content)
    words = arrays.pop(_ABOUT, None)
    if words is None or words.dtype != np.uint8 or words.ndim != 1 or words.size > _WORDS:
        raise WireError("a message does not say what it is about")
    try:
        about = json.loads(words.tobytes())
    except (ValueError, RecursionError) as error:
        raise WireError("a message does not say what it is about") from error
    if not isinstance(about, dict):
        raise WireError("a message does not say what it is about")
    return Message(about, arrays)


def signed(body: bytes, request: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a reply with the node's signature, which is for this request alone."""
    signature = sign(_of_reply(request, body))
    return len(signature).to_bytes(2, "big") + signature + body


def verified(content: bytes, request: bytes, verify: Callable[[bytes, bytes], bool]) -> bytes:
    """Return the body of a signed reply; raise `WireError` if it is not signed for this request."""
    size = int.from_bytes(content[:2], "big")
    signature, body = content[2 : 2 + size], content[2 + size :]
    if not verify(_of_reply(request, body), signature):
        raise WireError("a reply is not signed by the node that was asked")
    return body


def _of_reply(request: bytes, body: bytes) -> bytes:
    parts = (hashlib.sha256(part).digest() for part in (request, body))
    return b"privrec reply " + b"".join(parts)


def round_context(
    federation: str, run: str, round_index: int, attempt: int, clip_norm: float
) -> bytes:
    """Return what keys and signatures of one attempt of one round are bound to.

    The bound is in it, since the unit of the coding follows from it: nodes with different units
    would add less noise than is counted.
    """
    return f"privrec {federation} {run} {round_index} {attempt} {clip_norm!r}".encode()


def whole(about: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a whole number of a message, or raise."""
    value = about.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
        raise WireError(f"`{name}` must be a whole number >= {least}")
    return value


def number(about: Mapping[str, Any], name: str) -> float:
    """Return a number > 0 of a message, which may be infinite, or raise."""
    value = about.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise WireError(f"`{name}` must be a number > 0")
    try:
        return float(value)
    except OverflowError as error:
        raise WireError(f"`{name}` is too large") from error


def keys_by_node(value: object) -> dict[int, dict[str, bytes]]:
    """Return each node's byte strings by name, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError("`keys` must name nodes")
    try:
        return {int(node): blobs_by_name(parts) for node, parts in value.items()}
    except ValueError as error:
        raise WireError("`keys` must name nodes") from error


def blobs(value: object, what: str) -> dict[int, bytes]:
    """Return byte strings by node, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError(f"`{what}` must name nodes")
    try:
        return {int(node): bytes.fromhex(text) for node, text in value.items()}
    except (ValueError, TypeError) as error:
        raise WireError(f"`{what}` must have bytes for each node") from error


def blobs_by_name(value: object) -> dict[str, bytes]:
    """Return byte strings by name, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError("keys must have names")
    try:
        return {str(name): bytes.fromhex(text) for name, text in value.items()}
    except (ValueError, TypeError) as error:
        raise WireError("keys must be bytes") from error


def vector(arrays: Mapping[str, Leaf], name: str, size: int, kind: type) -> Leaf:
    """Return an array of exactly this size and kind of number, or raise."""
    found = arrays.get(name)
    if found is None or found.dtype != kind or found.shape != (size,):
        raise WireError(f"`{name}` must have {size:,} numbers of {np.dtype(kind)}")
    return found


def row(arrays: Mapping[str, Leaf], name: str, size: int) -> Leaf:
    """Return an array of exactly this size of finite numbers, or raise."""
    found = arrays.get(name)
    if found is None or found.dtype not in (np.float32, np.float64) or found.shape != (size,):
        raise WireError(f"`{name}` must have {size:,} numbers")
    if not np.isfinite(found).all():
        raise WireError("a sum is not finite")
    return found


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"cannot send {type(value).__name__}")


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
