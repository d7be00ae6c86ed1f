"""The axes of charts: where a value stands, and the numbers written beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, its `ticks` as text by value, and how it is divided."""

    low: float
    high: float
    ticks: Mapping[float, str]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return how far along the axis a value stands, in [0, 1]; what is outside is on an end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        # Halves: the difference of two large numbers of opposite sign could overflow.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def says(self, value: float) -> str:
        """Return a value as a reader wants it: its name where it has one, else a short number."""
        return self.ticks.get(value, f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}")


def x_axis(values: Sequence[float]) -> Axis:
    """Return an axis to the largest value, with round numbers on it; it starts at the smallest.

    Whole numbers are counts, such as rounds: they start at 0, so that charts can be compared.
    """
    whole = all(float(value).is_integer() for value in values)
    low = min(*values, 0.0) if whole else min(values)
    high = max(*values, low + 1) if max(values) == low else max(values)
    inside = [tick for tick in _ticks(low, high, whole=whole) if low <= tick <= high]
    return Axis(low=low, high=high, ticks=_texts(inside))


def y_axis(values: Sequence[float]) -> Axis:
    """Return an axis from a round number below all values to one above them."""
    ticks = _ticks(*_with_room(min(values), max(values)))
    return Axis(low=min(ticks[0], *values), high=max(ticks[-1], *values), ticks=_texts(ticks))


def log_axis(values: Sequence[float], *, widen: bool = False) -> Axis:
    """Return a logarithmic axis of positive values; with `widen` it ends on numbers that it shows.

    It shows powers of ten, and where these are few also 2 and 5 times them.
    """
    low, high = min(values), max(values)
    if high <= low:
        low, high = low / 2, high * 2
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low <= 300 else (1,)
    every = math.ceil(len(decades) / 8)
    ticks = [step * 10.0**decade for decade in decades[::every] for step in steps]
    if widen:
        low = max((tick for tick in ticks if tick <= low), default=low)
        high = min((tick for tick in ticks if tick >= high), default=high)
    inside = [tick for tick in ticks if low * 0.999999 <= tick <= high * 1.000001]
    return Axis(low=low, high=high, ticks=_texts(inside), is_log=True)


def named_axis(values: Sequence[float], names: Mapping[float, str]) -> Axis:
    """Return an axis whose values have names, with some room at both ends."""
    low, high = min(values), max(values)
    inside = {float(x): name for x, name in names.items() if low <= x <= high}
    return Axis(low=low - 0.3, high=high + 0.3, ticks=inside)


def _texts(ticks: Sequence[float]) -> dict[float, str]:
    return {tick: f"{tick:g}" for tick in ticks}


def _with_room(low: float, high: float) -> tuple[float, float]:
    """Return the range, widened if all values are equal."""
    size = max(abs(low), abs(high))
    if high - low > 1e-9 * size:
        return low, high
    return low - size / 2, high + (size / 2 or 1.0)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return four to nine round numbers that span the range; fewer if they must be `whole`."""
    span = max(high - low, 1e-9)
    step = 10.0 ** len(str(int(span))) if span >= 1 else 1.0
    while span / step < 4:
        step /= 10
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    if whole:
        step = max(step, 1.0)
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]
