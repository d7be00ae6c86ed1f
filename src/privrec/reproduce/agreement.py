"""Sentences that compare our numbers with the paper's; fixed rules make them from the numbers."""

from collections.abc import Sequence
from itertools import combinations

from privrec.evaluation.intervals import Difference, apart
from privrec.reproduce.results import Number
from privrec.runs.figures import around, digits, figure

Numbers = Sequence[Number]


def of(numbers: Numbers, row: str, column: str = "") -> Number | None:
    """Return the number in a row and column; `column` may be left out if there is only one.

    None if there is no such number.
    """
    in_row = [number for number in numbers if number.row == row and column in ("", number.column)]
    return in_row[0] if in_row and in_row[0].value is not None else None


def beside_printed(number: Number) -> str:
    """Return a sentence on whether a number is above or below the printed one, or agrees with it.

    It agrees if the printed number is inside the interval of ours.
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


def same_as_printed(numbers: Numbers) -> tuple[int, int]:
    """Return how many numbers equal the printed ones, and how many printed ones there are.

    Four decimals are compared: the paper cuts off the following digits.
    """
    known = [
        (number.value, number.printed)
        for number in numbers
        if number.value is not None and number.printed is not None
    ]
    same = sum(int(10_000 * ours + 1e-6) == round(10_000 * printed) for ours, printed in known)
    return same, len(known)


def order_of(numbers: Numbers) -> str:
    """Return a sentence on how many pairs of rows have the same order as in print.

    Pairs that are equal here or in print are left out.
    """
    known = [
        number for number in numbers if number.value is not None and number.printed is not None
    ]
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
    """Return a sentence on whether a number is above another one, level with it or below it.

    They are level if the interval of the difference contains 0. It is the interval for two
    independent groups of people.
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


def claim(text: str, holds: bool | None) -> str:
    """Return a claim of the paper and whether it holds here; "" if that is not known."""
    if holds is None:
        return ""
    return f"“{text}”: {'agrees' if holds else 'does not agree'}"


def share(ours: Number | None, other: Number | None) -> float | None:
    """Return `ours` divided by `other`; None if one is missing or 0."""
    if ours is None or other is None or not ours.value or not other.value:
        return None
    return ours.value / other.value


def rise(numbers: Numbers, row: str) -> str:
    """Return a sentence with the first, the last and the best value of a row of a figure."""
    points = [number for number in numbers if number.row == row and number.x is not None]
    points = [number for number in points if number.value]
    if len(points) < 2:
        return ""
    best = max(points, key=lambda number: number.value or 0.0)
    first, last = points[0], points[-1]
    change = (
        f"{row}: {figure(first.value)} at {first.column}, {figure(last.value)} at {last.column}"
    )
    return f"{change}, best {figure(best.value)} at {best.column}"


def is_flat(numbers: Numbers, row: str, start: float) -> bool | None:
    """Return whether a row of a figure is level from x = `start` on; None if that is not known.

    It is level if it changes by no more than half the length of its longest interval.
    """
    points = [n for n in numbers if n.row == row and n.x is not None and n.x >= start]
    values = [number.value for number in points if number.value is not None]
    if len(values) < 2:
        return None
    arms = [(number.ends[1] - number.ends[0]) / 2 for number in points if number.ends]
    return max(values) - min(values) <= max(arms, default=0.0)
