"""All that one device sends in one round: its parts, its length, and its bytes.

The arithmetic is numpy's in 64 bits, for one person at a time: it is what a phone runs, and the
truth that compiled code is tested against.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from privrec.errors import WireError
from privrec.types import IntArray, Leaf, Norm

Arrays = Mapping[str, Leaf]

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""The name of each sum -> the part of a contribution that it comes from, and its shape there."""


class TouchedRows(NamedTuple):
    """Some rows of a table that has `size` rows: `ids` (k,), each once, and `values` (k, …)."""

    ids: IntArray
    values: Leaf
    size: int


_NO_ARRAYS: Arrays = MappingProxyType({})
_NO_ROWS: Mapping[str, TouchedRows] = MappingProxyType({})
_WHOLE = ("dense", "outer", "triangle")
"""The parts of a contribution that are arrays, and not some rows of one."""


class Contribution(NamedTuple):
    """What one device sends, by the name of the sum that it is added to.

    `dense` arrays are added as they are. `rows` are added to their rows of a table, so that the
    size of a message follows what a person touched. A vector r in `outer` stands for the matrix
    r rᵀ, and one in `triangle` for the upper triangle of r rᵀ with its diagonal, row by row.
    """

    dense: Arrays = _NO_ARRAYS
    rows: Mapping[str, TouchedRows] = _NO_ROWS
    outer: Arrays = _NO_ARRAYS
    triangle: Arrays = _NO_ARRAYS


def length(contribution: Contribution, norm: Norm = "l2") -> float:
    """Return the length of all that the contribution adds to the sums, taken as one vector.

    With p = Σ|r|^k, r rᵀ has p² and its upper triangle (p² + Σ|r|^2k) / 2, k = 1 or 2 by the norm.
    """
    power = 1 if norm == "l1" else 2
    total = 0.0
    for part in (*contribution.dense.values(), *(r.values for r in contribution.rows.values())):
        total += float((np.abs(np.asarray(part, np.float64)) ** power).sum())
    for vector in contribution.outer.values():
        total += float(np.square((np.abs(np.asarray(vector, np.float64)) ** power).sum()))
    for vector in contribution.triangle.values():
        powers = np.abs(np.asarray(vector, np.float64)) ** power
        total += float(np.square(powers.sum()) + np.square(powers).sum()) / 2
    return total if norm == "l1" else math.sqrt(total)


def shapes_of(contribution: Contribution) -> Shapes | None:
    """Return which part each sum comes from and its shape; None if the contribution is unsound.

    Unsound is one that has a name in two parts, anything but real numbers, an outer vector that is
    no vector, or a row of a table that is named twice or out of range.
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    names = [name for part in contribution for name in part]
    if len(set(names)) != len(names) or not _rows_are_sound(contribution):
        return None
    leaves = []
    for name, (_, values, size) in contribution.rows.items():
        found[name] = ("rows", (size, *np.shape(values)[1:]))
        leaves.append(values)
    for part in _WHOLE:
        for name, leaf in getattr(contribution, part).items():
            found[name] = (part, np.shape(leaf))
            leaves.append(leaf)
            if part != "dense" and np.ndim(leaf) != 1:
                return None
    return found if all(np.asarray(leaf).dtype.kind in "fiub" for leaf in leaves) else None


def scaled(contribution: Contribution, factor: float) -> Contribution:
    """Return what adds `factor` times as much to every sum; 0 also removes what is not finite."""

    def times(leaf: Leaf, by: float) -> Leaf:
        return np.asarray(leaf, np.float64) * by if by else np.zeros(np.shape(leaf))

    root = math.sqrt(factor)
    return Contribution(
        dense={name: times(leaf, factor) for name, leaf in contribution.dense.items()},
        rows={
            name: rows._replace(values=times(rows.values, factor))
            for name, rows in contribution.rows.items()
        },
        outer={name: times(leaf, root) for name, leaf in contribution.outer.items()},
        triangle={name: times(leaf, root) for name, leaf in contribution.triangle.items()},
    )


def nothing(expected: Shapes) -> Contribution:
    """Return what adds zeros to all sums."""
    parts: dict[str, dict[str, Leaf]] = {"dense": {}, "rows": {}, "outer": {}, "triangle": {}}
    for name, (part, shape) in expected.items():
        if part == "rows":
            size, *rest = shape
            parts[part][name] = TouchedRows(np.zeros(0, np.int64), np.zeros((0, *rest)), size)
        else:
            parts[part][name] = np.zeros(shape)
    return Contribution(**parts)


def add_to(total: dict[str, Leaf], contribution: Contribution) -> None:
    """Add a contribution to the sums in `total`, which begin as an empty dict."""
    for name, leaf in contribution.dense.items():
        _part(total, name, np.shape(leaf))[...] += np.asarray(leaf, np.float64)
    for name, (ids, values, size) in contribution.rows.items():
        table = _part(total, name, (size, *np.shape(values)[1:]))
        table[np.asarray(ids)] += np.asarray(values, np.float64)
    for name, vector in contribution.outer.items():
        wide = np.asarray(vector, np.float64)
        _part(total, name, (len(wide), len(wide)))[...] += np.outer(wide, wide)
    for name, vector in contribution.triangle.items():
        wide = np.asarray(vector, np.float64)
        above = np.triu_indices(len(wide))
        _part(total, name, (len(above[0]),))[...] += wide[above[0]] * wide[above[1]]


def to_bytes(contribution: Contribution) -> bytes:
    """Return the contribution as it goes over the wire: safetensors, one array a part."""
    arrays: dict[str, Leaf] = {}
    for part in _WHOLE:
        arrays |= {f"{part} {name}": leaf for name, leaf in getattr(contribution, part).items()}
    for name, (ids, values, size) in contribution.rows.items():
        arrays |= {f"ids {name}": ids, f"values {name}": values, f"size {name}": size}
    return told_to_bytes(arrays)


def from_bytes(content: bytes, expected: Shapes) -> Contribution:
    """Return the contribution in these bytes; raise `WireError` unless it is as `expected`."""
    parts: dict[str, dict[str, Leaf]] = {}
    for name, array in told_from_bytes(content).items():
        kind, _, rest = name.partition(" ")
        parts.setdefault(kind, {})[rest] = array
    ids, values, sizes = (parts.pop(kind, {}) for kind in ("ids", "values", "size"))
    if not parts.keys() <= set(_WHOLE) or not (ids.keys() == values.keys() == sizes.keys()):
        raise WireError(f"a contribution has unknown or missing parts: {sorted(parts)}")
    if any(size.shape != () or size.dtype.kind not in "iu" for size in sizes.values()):
        raise WireError("a contribution has a table whose size is not a whole number")
    rows = {name: TouchedRows(ids[name], values[name], int(sizes[name])) for name in ids}
    found = Contribution(rows=rows, **parts)
    if shapes_of(found) != expected:
        raise WireError("a contribution does not have the names and shapes of this round's sums")
    return found


def told_to_bytes(told: Arrays) -> bytes:
    """Return what the server tells every device, as it goes over the wire."""
    return bytes(save({name: np.asarray(leaf, order="C") for name, leaf in told.items()}))


def told_from_bytes(content: bytes) -> dict[str, Leaf]:
    """Return what the server told, or raise `WireError`."""
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        # The library raises other errors for number formats and shapes that numpy does not have.
        raise WireError(f"a message is not of privrec's format: {str(error)[:200]}") from error


def _rows_are_sound(contribution: Contribution) -> bool:
    """Return whether each row is named once, is in its table, and has its values."""
    for ids, values, size in contribution.rows.values():
        named = np.asarray(ids)
        if size < 0:
            return False
        if named.ndim != 1 or named.shape != np.shape(values)[:1] or named.dtype.kind not in "iu":
            return False
        if len(np.unique(named)) != len(named) or (named < 0).any() or (named >= size).any():
            return False
    return True


def _part(total: dict[str, Leaf], name: str, shape: tuple[int, ...]) -> Leaf:
    if name not in total:
        total[name] = np.zeros(shape)
    return total[name]
