"""Tables of scores, added up as opinions, and the shapes of parameters.

Nothing here knows people's data, so that what ranks on a phone imports little.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privrec.errors import RunFolderError
from privrec.types import Leaf

Scores = npt.NDArray[np.floating]
_EQUAL = 1e-12
"""Scores that differ by less than this share are equal: the difference is a rounding error."""


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
    """Return each row with mean 0 and standard deviation 1; a row of equal scores becomes 0.

    >>> standardised(np.array([[1.0, 3.0], [0.1, 0.1]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    wide = np.asarray(scores, np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    spread = centred.std(1, keepdims=True)
    # The mean of equal numbers is rounded, so their spread need not be exactly 0.
    equal = spread <= _EQUAL * np.abs(wide).max(1, keepdims=True, initial=0.0)
    result = np.divide(centred, spread, out=np.zeros_like(wide), where=~equal)
    return np.asarray(result, scores.dtype)


def added(first: Scores, second: Scores, weight: float) -> Scores:
    """Return the scores of two opinions together, shape (people, n_items) as those of each.

    Both are standardised for each person before they are added, the second times `weight`: so it
    does not matter in which unit either is.
    """
    return standardised(first) + weight * standardised(second)
