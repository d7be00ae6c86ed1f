"""Sentences on how far ours agree with the paper, each made by a rule from the numbers alone."""

from collections.abc import Sequence
from itertools import combinations

from privrec.evaluation.intervals import Difference, apart
from privrec.reproduce.results import Number
from privrec.runs.figures import around, digits, figure

Found = Sequence[Number]


def of(numbers: Found, row: str, column: str = "") -> Number | None:
    """Return the number of a row, in a column or in its only one; None if it is not there."""
    mine = [one for one in numbers if one.row == row and column in ("", one.column)]
    return mine[0] if mine and mine[0].value is not None else None


def beside_printed(number: Number) -> str:
    """Return where a number stands beside the printed one: above, below, or agreeing with it.

    It agrees where the printed one lies in the interval of ours.
    """
    if number.value is None or number.printed is None:
        return ""
    ours, ends = number.value, number.ends or (number.value, number.value)
    by = ours - number.printed
    if ends[0] <= number.printed <= ends[1]:
        shown = f"{figure(ours)} ({figure(ends[0])} to {figure(ends[1])})"
        return f"{number.row}: {shown} agrees with the printed {figure(number.printed)}"
    difference = Difference(by=by, low=ends[0] - number.printed, high=ends[1] - number.printed)
    arm = around(difference) if number.ends else ""
    where = "above" if by > 0 else "below"
    far = digits(abs(by)) + arm
    return f"{number.row}: {figure(ours)}, {where} the printed {figure(number.printed)} by {far}"


def same_as_printed(numbers: Found) -> tuple[int, int]:
    """Return how many numbers are the printed ones, and how many have one, to the fourth decimal.

    The paper cuts off what follows it.
    """
    known = [
        (one.value, one.printed)
        for one in numbers
        if one.value is not None and one.printed is not None
    ]
    same = sum(int(10_000 * ours + 1e-6) == round(10_000 * printed) for ours, printed in known)
    return same, len(known)


def order_of(numbers: Found) -> str:
    """Return in how many pairs of rows the order is the printed one; ties count for neither."""
    known = [one for one in numbers if one.value is not None and one.printed is not None]
    pairs = [
        (a, b) for a, b in combinations(known, 2) if a.printed != b.printed and a.value != b.value
    ]
    if not pairs:
        return ""
    same = sum(_rises(a.value, b.value) == _rises(a.printed, b.printed) for a, b in pairs)
    if len(pairs) == 1:
        return f"the order of the two {'agrees' if same else 'does not agree'}"
    return f"the order agrees in {same} of {len(pairs)} pairs"


def _rises(a: float | None, b: float | None) -> bool:
    return (a or 0.0) < (b or 0.0)


def compared(ours: Number | None, other: Number | None) -> str:
    """Return whether a number is above another one, level with it or below it, and by how much.

    They are level where the interval of the difference, as of different people, has 0 in it.
    """
    if ours is None or other is None:
        return ""
    difference = apart(_with_ends(ours), _with_ends(other))
    by = digits(abs(difference.by)) + around(difference)
    pair = f"{ours.row} ({figure(ours.value)}) against {other.row} ({figure(other.value)})"
    if difference.low <= 0 <= difference.high:
        return f"{pair}: level (difference {by})"
    return f"{pair}: {'above' if difference.by > 0 else 'below'} it by {by}"


def _with_ends(number: Number) -> Difference:
    value = number.value or 0.0
    low, high = number.ends or (value, value)
    return Difference(by=value, low=low, high=high)


def claim(words: str, holds: bool | None) -> str:
    """Return what the paper claims, and whether it holds here; "" if that is not known."""
    if holds is None:
        return ""
    return f"“{words}”: {'agrees' if holds else 'does not agree'}"


def share(ours: Number | None, other: Number | None) -> float | None:
    """Return one number as a multiple of another one."""
    if ours is None or other is None or not ours.value or not other.value:
        return None
    return ours.value / other.value


def rise(numbers: Found, row: str) -> str:
    """Return how a row changes from its first place to its best one and its last one."""
    mine = [one for one in numbers if one.row == row and one.x is not None and one.value]
    if len(mine) < 2:
        return ""
    best = max(mine, key=lambda one: one.value or 0.0)
    first, last = mine[0], mine[-1]
    change = (
        f"{row}: {figure(first.value)} at {first.column}, {figure(last.value)} at {last.column}"
    )
    return f"{change}, best {figure(best.value)} at {best.column}"


def is_flat(numbers: Found, row: str, start: float) -> bool | None:
    """Return whether a row changes less than its intervals from a place on; None if unknown."""
    mine = [one for one in numbers if one.row == row and one.x is not None and one.x >= start]
    values = [one.value for one in mine if one.value is not None]
    if len(values) < 2:
        return None
    arms = [(one.ends[1] - one.ends[0]) / 2 for one in mine if one.ends]
    return max(values) - min(values) <= max(arms, default=0.0)
