"""A contribution is all that one device sends in one round; its length, its sum and its bytes.

This module runs on phones: it uses numpy in 64 bits, for one person at a time.
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
"""By name of a sum: the field of `Contribution` that has its array, and the shape of the array."""


class TouchedRows(NamedTuple):
    """k rows of a table that has `size` rows: row numbers `ids` (k,), and `values` (k, …)."""

    ids: IntArray
    values: Leaf
    size: int


_NO_ARRAYS: Arrays = MappingProxyType({})
_NO_ROWS: Mapping[str, TouchedRows] = MappingProxyType({})
_WHOLE = ("dense", "outer", "triangle")
"""The fields of a contribution that hold whole arrays, not rows of a table."""


class Contribution(NamedTuple):
    """What one device sends, by the name of the sum to which each array is added.

    `rows` has only those rows of a table that are not zero, so that a message is small. A vector r
    in `outer` stands for the matrix r rᵀ. A vector r in `triangle` stands for the upper triangle of
    r rᵀ with its diagonal, row by row.
    """

    dense: Arrays = _NO_ARRAYS
    rows: Mapping[str, TouchedRows] = _NO_ROWS
    outer: Arrays = _NO_ARRAYS
    triangle: Arrays = _NO_ARRAYS


def length(contribution: Contribution, norm: Norm = "l2") -> float:
    """Return the norm of the vector of all numbers that the contribution adds to the sums.

    Let k = 1 for the L1 norm, k = 2 for the L2 norm, and p = Σ|r|^k. The sum of |number|^k is then
    p² for r rᵀ, and (p² + Σ|r|^2k) / 2 for the upper triangle of r rᵀ.
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
    """Return the field and the shape of each array by name; None if the contribution is unsound.

    A contribution is unsound if a name occurs twice, if it has anything but real numbers, if an
    array in `outer` or `triangle` is not a vector, or if a row number of a table occurs twice or is
    out of range.
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
    """Return the contribution with all numbers that it adds to sums multiplied by `factor`.

    If `factor` is 0, numbers that are not finite become 0, too.
    """

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
    """Return a contribution of zeros with the `expected` names and shapes."""
    parts: dict[str, dict[str, Leaf]] = {"dense": {}, "rows": {}, "outer": {}, "triangle": {}}
    for name, (part, shape) in expected.items():
        if part == "rows":
            size, *rest = shape
            parts[part][name] = TouchedRows(np.zeros(0, np.int64), np.zeros((0, *rest)), size)
        else:
            parts[part][name] = np.zeros(shape)
    return Contribution(**parts)


def add_to(total: dict[str, Leaf], contribution: Contribution) -> None:
    """Add a contribution to the sums in `total`, in place; missing sums are created."""
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
    """Return the contribution as the bytes of a message, in the safetensors format."""
    arrays: dict[str, Leaf] = {}
    for part in _WHOLE:
        arrays |= {f"{part} {name}": leaf for name, leaf in getattr(contribution, part).items()}
    for name, (ids, values, size) in contribution.rows.items():
        arrays |= {f"ids {name}": ids, f"values {name}": values, f"size {name}": size}
    return told_to_bytes(arrays)


def from_bytes(content: bytes, expected: Shapes) -> Contribution:
    """Return the contribution in these bytes.

    Raise `WireError` if the contribution does not have the `expected` names and shapes.
    """
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
    """Return the arrays that the server sends to every device, as the bytes of a message."""
    return bytes(save({name: np.asarray(leaf, order="C") for name, leaf in told.items()}))


def told_from_bytes(content: bytes) -> dict[str, Leaf]:
    """Return the arrays in a message, by name; raise `WireError` if the bytes are no message."""
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        # safetensors raises the other errors for number formats and shapes that numpy lacks.
        raise WireError(f"a message is not of privrec's format: {str(error)[:200]}") from error


def _rows_are_sound(contribution: Contribution) -> bool:
    """Return whether row numbers are different, in range, and as many as rows of values."""
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
