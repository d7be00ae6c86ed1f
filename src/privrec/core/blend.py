"""Two opinions of the same items, added; numpy alone, as on a phone."""

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.floating]

_EQUAL = 1e-12
"""Scores that differ by less than this share are equal: the difference is a rounding error."""


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
