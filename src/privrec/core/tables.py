"""Functions on tables of scores, and a check of the shapes of parameters.

Phones use this module, so it imports no code for people's data.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privrec.errors import RunFolderError
from privrec.types import F64, Leaf

Scores = npt.NDArray[np.floating]
_EQUAL = 1e-12
"""A relative standard deviation below this is a rounding error: the scores are equal."""
_AT_ONCE = 2**17
"""The number of scores that are added at a time, to fit into a processor's cache. Chosen by hand.
"""
_TOGETHER = 128
"""The number of squares that are added in the precision of the scores. With more squares, rounding
errors would grow."""


def check_shapes(params: Mapping[str, Leaf], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise unless all expected parameters exist and have the expected shapes."""
    for name, shape in expected.items():
        found = np.shape(params[name]) if name in params else None
        if found != shape:
            raise RunFolderError(
                f"the parameters do not fit the catalogue: {name!r} must have shape {shape}; "
                + ("it is missing" if found is None else f"got {found}")
            )


def standardised(scores: Scores) -> Scores:
    """Return the rows scaled to mean 0 and standard deviation 1; equal scores become 0.

    >>> standardised(np.array([[1.0, 3.0], [0.1, 0.1]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    mean = scores.mean(1, keepdims=True, dtype=np.float64)
    centred = scores - mean.astype(scores.dtype)
    spread = np.sqrt(_squares(centred) / max(scores.shape[1], 1))[:, None]
    # The mean is rounded, so the standard deviation of equal numbers may differ from 0.
    equal = spread <= _EQUAL * np.abs(mean)
    centred *= np.where(equal, 0.0, 1 / np.where(equal, 1.0, spread)).astype(scores.dtype)
    return np.asarray(centred)


def _squares(table: Scores) -> F64:
    """Return the sum of squares of each row.

    Groups of `_TOGETHER` columns are added in the precision of the table, and the sums of the
    groups in 64 bits.
    """
    rows, width = table.shape
    whole = width - width % _TOGETHER
    parts = table[:, :whole].reshape(rows, -1, _TOGETHER)
    sums = np.einsum("ijk,ijk->ij", parts, parts).sum(1, dtype=np.float64)
    rest = table[:, whole:].astype(np.float64)
    return np.asarray(sums + np.einsum("ij,ij->i", rest, rest))


def added(first: Scores, second: Scores, weight: float) -> Scores:
    """Return standardised(first) + weight · standardised(second), shape (people, n_items).

    Each row is standardised, so the two tables may have different units.
    """
    both = np.empty_like(first)
    step = max(1, _AT_ONCE // max(first.shape[1], 1))
    for start in range(0, len(first), step):
        some = slice(start, start + step)
        more = standardised(second[some])
        more *= weight
        np.add(standardised(first[some]), more, out=both[some])
    return both
