"""Groups of people by how much is on their device."""

from itertools import pairwise

import numpy as np

from privrec.types import BoolArray, IntArray

MOST = 5
"""Groups at most. Chosen by hand: they fit on a screen."""
AT_LEAST = 20
"""People in a group, where there are enough. Chosen by hand: with fewer, an interval of a share is
wider than most differences."""


def by_items(items: IntArray) -> list[BoolArray]:
    """Return groups of about the same size, from few items to many: who is in each.

    `items` is how many items are on the device of each person. People with the same number are in
    the same group.
    """
    left = len(items)
    if not left:
        return []
    goal = left / max(1, min(MOST, left // AT_LEAST))
    numbers, sizes = np.unique(items, return_counts=True)
    edges, begun = [int(numbers[0]) - 1], 0
    for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        begun, left = begun + size, left - size
        if begun >= goal and left >= min(AT_LEAST, goal):
            edges.append(number)
            begun = 0
    edges.append(int(numbers[-1]))
    return [(items > low) & (items <= high) for low, high in pairwise(edges)]
