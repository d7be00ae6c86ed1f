"""Line charts as SVG: the axes, the positions of points and the styles of curves.

The template `chart.html` draws them.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from markupsafe import Markup

from privrec.show.page import light_style, part


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis from `low` to `high`, with the text of each tick by its value."""

    low: float
    high: float
    ticks: Mapping[float, str]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, in [0, 1]; outside values are at an end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        # Use halves, because the difference of large numbers of opposite sign could overflow.
        return (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)

    def says(self, value: float) -> str:
        """Return a value as text: that of its tick if it has one, else a short number."""
        return self.ticks.get(value, f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}")


def x_axis(values: Sequence[float]) -> Axis:
    """Return an axis from the smallest to the largest value, with round numbers as ticks.

    For whole numbers, which are counts such as rounds, the axis starts at 0 (or below), so that
    charts can be compared.
    """
    whole = all(float(value).is_integer() for value in values)
    low = min(*values, 0.0) if whole else min(values)
    high = max(*values, low + 1) if max(values) == low else max(values)
    inside = [tick for tick in _ticks(low, high, whole=whole) if low <= tick <= high]
    return Axis(low=low, high=high, ticks=_texts(inside))


def y_axis(values: Sequence[float]) -> Axis:
    """Return an axis whose ends are round numbers below and above all values."""
    ticks = _ticks(*_with_room(min(values), max(values)))
    return Axis(low=min(ticks[0], *values), high=max(ticks[-1], *values), ticks=_texts(ticks))


def log_axis(values: Sequence[float], *, widen: bool = False) -> Axis:
    """Return a logarithmic axis of positive values; with `widen`, its ends are ticks.

    The ticks are powers of ten; on short axes also 2 and 5 times them.
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
    """Return an axis with names as ticks, and with some room at both ends."""
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
    """Return five to ten round numbers that span the range; fewer if they must be `whole`."""
    span = max(high - low, 1e-9)
    step = 10.0 ** len(str(int(span))) if span >= 1 else 1.0
    while span / step < 4:
        step /= 10
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    if whole:
        step = max(step, 1.0)
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]


Points = Sequence[tuple[float, float]]
Ends = Mapping[float, tuple[float, float]]
"""The ends of the interval around the y of a point, by the x of the point."""

_BOX = {"width": 640, "height": 300, "left": 58, "right": 510, "top": 16, "bottom": 260}
_COLOURS = 6
_SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.4L4.2 3.2h-8.4z",
    "M0-4.6L4.6 0L0 4.6L-4.6 0z",
    "M0 4.4L4.2-3.2h-8.4z",
)
"""The SVG paths of the dots. Number n in `_PLACES` means shape n modulo 5 and colour n modulo 6, so
30 names differ in at least one of them."""
_RECIPES = (
    *("privrec-plus", "dp-privrec-plus", "popularity", "item-knn", "ease", "own-items"),
    *("privrec", "dp-privrec", "dp-privrec-one", "lm-privrec", "fcf", "fedgnn", "dpals", "ncf"),
    *("privrec-paper", "privrec-sgd", "privrec-cen", "fofl-self", "nn-self", "ssl-items"),
)
_ATTACKS = ("the paper's attack", "likelihood ratio", "published sums", "two trainings")
_PLACES = {
    **{name: place for place, name in enumerate(_RECIPES)},
    **{f"Hits@{k}": place for place, k in enumerate((30, 20, 10, 5))},
    **{name: place for place, name in enumerate(("loss", *_ATTACKS))},
}
"""Each name's number, which decides its colour and shape on all pages. Append new recipes and move
none: otherwise colours would change their meaning."""
_DASHES = ("5 4", "1.5 3", "9 3 2 3")
_LINE = 400
"""The most points of a line; longer curves are thinned, because more points cannot be seen."""
_DOTS = 40
"""A curve with more points than this has no visible dots, and about this many points with tips."""
_BARS = 8
"""A curve without dots has about this many intervals, because more would hide it."""
_ROOM = 1.25
"""A logarithmic x axis extends by this factor beyond its points."""
_LETTERS, _BESIDE = 19, 16
"""The number of letters of a name, and the number of names, that fit beside the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A named curve: its points, CSS class (`look`), dots (`shape`), dashes and intervals (`ends`).

    A level is a curve of one point, without a shape.
    """

    name: str
    points: Points
    look: str = ""
    shape: str = ""
    dash: str = ""
    ends: Ends = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes and their names; it computes the position of a point in the picture."""

    x: Axis
    y: Axis
    x_label: str
    y_label: str

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.left(x), self.top(y)

    def left(self, x: float) -> float:
        return round(_BOX["left"] + self.x.share(x) * (_BOX["right"] - _BOX["left"]), 1)

    def top(self, y: float) -> float:
        return round(_BOX["bottom"] - self.y.share(y) * (_BOX["bottom"] - _BOX["top"]), 1)

    def says(self, y: float, ends: tuple[float, float] | None) -> str:
        """Return a value and its interval as text."""
        between = f" ({self.y.says(ends[0])} to {self.y.says(ends[1])})" if ends else ""
        return self.y.says(y) + between


def line_chart(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, float] | None = None,
    x_names: Mapping[float, str] | None = None,
    bars: Mapping[str, Ends] | None = None,
    kinds: Mapping[str, str] | None = None,
    logs: str = "",
    from_zero: bool = False,
    steps: bool = False,
    title: str = "",
) -> Markup:
    """Return a figure of named curves; "" if no curve has two points and there are no `levels`.

    `levels` are horizontal lines, such as a baseline. `x_names` are the labels of an x axis that is
    not numeric. `bars` are intervals around points, by the name of a curve; that of a level is at
    x = 1. `kinds` has the recipe of a curve or level whose name is not a recipe: it decides the
    colour. `logs` names the logarithmic axes: "x", "y" or "xy". With `from_zero` the y axis has 0
    on it. With `steps` a value holds until the next point. With a `title` the result is a whole SVG
    file instead of a part of a page.

    Points that are not finite, such as the loss of a run that diverged, are left out, and so are
    points that are not positive on a logarithmic axis.
    """
    curves = _curves(series, bars or {}, logs)
    lines = _curves({name: [(1.0, y)] for name, y in (levels or {}).items()}, bars or {}, logs)
    if not _is_chart(curves) and not (curves and lines):
        return Markup()
    recipes = [(kinds or {}).get(curve.name, curve.name) for curve in (*curves, *lines)]
    drawn = _with_looks([*curves, *lines], recipes)
    curves = drawn[: len(curves)]
    lines = [
        replace(line, look=line.look if recipe in _PLACES else "dashed", dash=_dash(n), shape="")
        for n, (line, recipe) in enumerate(zip(drawn, recipes, strict=True), start=-len(curves))
        if n >= 0
    ]
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    ys += [end for curve in drawn for ends in curve.ends.values() for end in ends]
    ys += [0.0] if from_zero and "y" not in logs else []
    x = log_axis([min(xs) / _ROOM, max(xs) * _ROOM]) if "x" in logs else x_axis(xs)
    y = log_axis(ys, widen=True) if "y" in logs else y_axis(ys)
    x = named_axis(xs, x_names) if x_names else x
    frame = _Frame(x=x, y=y, x_label=x_label, y_label=y_label)
    return _figure(frame, curves, levels=lines, steps=steps, title=title)


def _curves(series: Mapping[str, Points], bars: Mapping[str, Ends], logs: str) -> list[_Curve]:
    """Return the curves and intervals that can be drawn on the axes, without styles."""
    curves = []
    for name, points in series.items():
        shown = [point for point in points if _has_place(*point, logs)]
        places = dict(shown)
        ends = {
            x: both
            for x, both in bars.get(name, {}).items()
            if x in places and all(_has_place(x, end, logs) for end in both)
        }
        if shown:
            curves.append(_Curve(name=name, points=shown, ends=ends))
    return curves


def _has_place(x: float, y: float, logs: str) -> bool:
    is_finite = math.isfinite(x) and math.isfinite(y)
    return is_finite and (x > 0 or "x" not in logs) and (y > 0 or "y" not in logs)


def _is_chart(curves: Sequence[_Curve]) -> bool:
    """Return whether there is anything to draw: a curve with at least two points."""
    return any(len(dict(curve.points)) > 1 for curve in curves)


def _with_looks(curves: Sequence[_Curve], recipes: Sequence[str]) -> list[_Curve]:
    return [
        replace(curve, look=look, shape=shape, dash=dash)
        for curve, (look, shape, dash) in zip(curves, looks_of(recipes), strict=True)
    ]


def looks_of(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the CSS class of the colour, the shape and the dashes of each name in a chart.

    A name in `_PLACES` has its own colour; other names take free colours. If several curves have
    the same colour, the later ones have other shapes and are dashed.
    """
    known = {_PLACES[name] % _COLOURS for name in names if name in _PLACES}
    places: list[int] = []
    for name in names:
        taken = known | {place % _COLOURS for place in places}
        free = [place for place in range(_COLOURS) if place not in taken]
        places.append(_PLACES.get(name, free[0] if free else len(places)))
    looks: list[tuple[str, str, str]] = []
    for place in places:
        look = f"s{place % _COLOURS}"
        used = [shape for other, shape, _ in looks if other == look]
        shapes = [_SHAPES[(place + n) % len(_SHAPES)] for n in range(len(_SHAPES))]
        shape = next((one for one in shapes if one not in used), shapes[0])
        looks.append((look, shape, _dash(len(used) - 1) if used else ""))
    return looks


def log_chart(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    dashed: Mapping[str, Points] | None = None,
    low: float = 1e-3,
) -> Markup:
    """Return a figure of named curves from `low` to 1 on two logarithmic axes; "" without curves.

    Values below `low`, also 0, are drawn at the edge. `dashed` curves are for comparison.
    """
    curves = _curves(series, {}, "")
    if not _is_chart(curves):
        return Markup()
    curves = _with_looks(curves, [curve.name for curve in curves])
    beside = [
        replace(curve, look=("dashed", "bold")[n % 2], dash=_dash(n))
        for n, curve in enumerate(_curves(dashed or {}, {}, ""))
    ]
    axis = log_axis([low, 1.0])
    frame = _Frame(x=axis, y=axis, x_label=x_label, y_label=y_label)
    return _figure(frame, curves, beside=beside)


def _kept(places: Points, most: int) -> list[int]:
    """Return the indices of about `most` points, equally far apart along the curve."""
    if len(places) <= most:
        return list(range(len(places)))
    steps = [math.dist(*both) for both in itertools.pairwise(places)]
    walked = list(itertools.accumulate(steps, initial=0.0))
    parts = [int(far / (walked[-1] or 1.0) * most) for far in walked]
    kept = [n for n in range(1, len(parts)) if parts[n] > parts[n - 1]]
    return sorted({0, *kept, len(places) - 1})


def _figure(
    frame: _Frame,
    curves: Sequence[_Curve],
    *,
    beside: Sequence[_Curve] = (),
    levels: Sequence[_Curve] = (),
    steps: bool = False,
    title: str = "",
) -> Markup:
    """Return the figure: the chart, and below it the names of its curves.

    On narrow screens the names are only below. On others they are beside the chart, and also below
    if they do not fit beside it.
    """
    drawn = (*beside, *curves)
    labels = [(frame.top(one.points[-1][1]), one.name, one.look) for one in (*levels, *drawn)]
    crowded = len(labels) > _BESIDE
    logs = [name for name, axis in (("x", frame.x), ("y", frame.y)) if axis.is_log]
    scale = ", both logarithmic" if len(logs) == 2 else f", {logs[0]} logarithmic" if logs else ""
    named = [replace(it, name=f"{it.name} ({it.points[0][1]:.3g})") for it in levels]
    return part(
        "picture.svg" if title else "chart.html",
        title=title,
        style=light_style() if title else "",
        box=_BOX,
        x_label=frame.x_label,
        y_label=frame.y_label,
        label=f"{frame.y_label} against {frame.x_label}{scale}",
        x_ticks=[(frame.left(value), text) for value, text in frame.x.ticks.items()],
        y_ticks=[(frame.top(value), text) for value, text in frame.y.ticks.items()],
        levels=[_level(frame, level) for level in levels],
        curves=[_drawn(frame, curve, steps=steps) for curve in drawn],
        names=[] if crowded else [(y, _cut(name), look) for y, name, look in _apart(labels)],
        key=[*curves, *beside, *named],
        key_always=crowded or any(len(name) > _LETTERS for _, name, _ in labels),
    )


def _level(frame: _Frame, level: _Curve) -> dict[str, object]:
    """Return what the template needs to draw a level: a line, and its interval as a band."""
    value, ends = level.points[0][1], next(iter(level.ends.values()), None)
    band = (frame.top(ends[1]), frame.top(ends[0]) - frame.top(ends[1])) if ends else None
    tip = f"{level.name}: {frame.says(value, ends)}"
    return {"look": level.look, "dash": level.dash, "y": frame.top(value), "band": band, "tip": tip}


def _drawn(frame: _Frame, curve: _Curve, *, steps: bool) -> dict[str, object]:
    """Return what the template needs to draw a curve: line, intervals, and dots with tips."""
    placed = [frame.place(x, y) for x, y in curve.points]
    line = [placed[index] for index in _kept(placed, _LINE)]
    if steps:
        corners = [(b[0], a[1]) for a, b in itertools.pairwise(line)]
        line = [p for both in zip(line, [*corners, line[-1]], strict=True) for p in both][:-1]
    few = len(placed) <= _DOTS
    with_bars = {curve.points[index][0] for index in _kept(placed, _DOTS if few else _BARS)}
    return {
        "look": curve.look,
        "dash": curve.dash,
        "shape": curve.shape,
        "line": " ".join(f"{x},{y}" for x, y in line),
        "bars": [_bar(frame, x, ends) for x, ends in curve.ends.items() if x in with_bars],
        "dots": [
            _dot(frame, curve, index) | {"quiet": not few}
            for index in (_kept(placed, _DOTS) if curve.shape else ())
        ],
    }


def _bar(frame: _Frame, x: float, ends: tuple[float, float]) -> str:
    at, low, high = frame.left(x), frame.top(ends[0]), frame.top(ends[1])
    return f"M{at} {low}V{high}M{at - 4:.1f} {low}h8M{at - 4:.1f} {high}h8"


def _dot(frame: _Frame, curve: _Curve, index: int) -> dict[str, object]:
    x, y = curve.points[index]
    value = frame.says(y, curve.ends.get(x))
    tip = f"{curve.name} — {frame.x_label} {frame.x.says(x)}: {value}"
    left, top = frame.place(x, y)
    return {"left": left, "top": top, "x": f"{x:g}", "y": f"{y:g}", "tip": tip}


def _apart(labels: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Return labels (y, name, look) moved down until none overlap, then up if below the axis."""
    placed: list[tuple[float, str, str]] = []
    for y, name, look in sorted(labels):
        below = max(y, placed[-1][0] + 14) if placed else y
        placed.append((below, name, look))
    lowest: float = _BOX["bottom"]
    lifted = []
    for y, name, look in reversed(placed):
        lifted.append((min(y, lowest), name, look))
        lowest = lifted[-1][0] - 14
    return lifted


def _dash(number: int) -> str:
    """Return the dashes of a line; neighbouring numbers have different dashes."""
    return _DASHES[number % len(_DASHES)]


def _cut(name: str) -> str:
    """Return a name that fits beside the chart; it keeps its end, where names of runs differ."""
    return name if len(name) <= _LETTERS else f"{name[:6]}…{name[7 - _LETTERS :]}"
