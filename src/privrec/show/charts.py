"""Line charts as SVG text, drawn with the classes of `style.py`: no network and no library.

The axes of charts: where a value stands, and the numbers written beside them.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from privrec.show.page import STYLE, html_text


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


Points = Sequence[tuple[float, float]]
Ends = Mapping[float, tuple[float, float]]
"""By the x of a point, the ends of an interval around its y."""

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 130, 16, 40
_COLOURS = 6
_SHAPES = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "M-3.2-3.2h6.4v6.4h-6.4z",
    "M0-4.4L4.2 3.2h-8.4z",
    "M0-4.6L4.6 0L0 4.6L-4.6 0z",
    "M0 4.4L4.2-3.2h-8.4z",
)
"""Place n has shape n modulo 5 and colour n modulo 6: 30 places before both come again."""
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
"""The place of a name, the same on all pages: a colour that changed its meaning would mislead.
Append new recipes, and move none."""
_DASHES = ("5 4", "1.5 3", "9 3 2 3")
_DOTS = 40
"""A curve of more points than this is drawn without dots; so many of them can be hovered."""
_BARS = 8
"""A curve without dots has about so many intervals: more would hide it."""
_ROOM = 1.25
"""A logarithmic x axis begins and ends by this factor beyond its points."""
_LETTERS, _BESIDE = 19, 16
"""Letters of a curve's name, and names, that fit beside the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A named curve: the points to draw, its class, its shape, and the intervals of its points.

    A level is a curve of one point, without a shape.
    """

    name: str
    points: Points
    look: str
    shape: str = ""
    dash: str = ""
    ends: Ends = field(default_factory=dict)
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The axes and their names, which say where a point stands in the picture."""

    x: Axis
    y: Axis
    x_label: str
    y_label: str

    def place(self, x: float, y: float) -> tuple[float, float]:
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return _LEFT + self.x.share(x) * wide, _HEIGHT - _BOTTOM - self.y.share(y) * high


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
) -> str:
    """Return a figure of named curves; "" if no curve has two points and there are no `levels`.

    `levels` are dashed horizontal lines, such as a baseline. `x_names` are the labels of an x axis
    that is not numeric. `bars` are intervals around points, by the name of a curve; that of a level
    is at x = 0. `kinds` says which recipe a curve or level is of, where its name does not: a recipe
    has one colour on all pages. `logs` names the logarithmic axes: "x", "y" or "xy". With
    `from_zero` the y axis has 0 on it. With `steps` a value holds until the next point.

    Points that are not finite, such as the loss of a run that diverged, are left out, and so are
    those that are not positive on a logarithmic axis.
    """

    def fits(x: float, y: float) -> bool:
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or "x" not in logs) and (y > 0 or "y" not in logs)

    shown = {name: [p for p in points if fits(*p)] for name, points in series.items()}
    shown = {name: points for name, points in shown.items() if points}
    flat = {name: level for name, level in (levels or {}).items() if fits(1.0, level)}
    if not _is_curve(shown) and not (shown and flat):
        return ""
    named = [*shown.items(), *((name, [(0.0, level)]) for name, level in flat.items())]
    recipes = [(kinds or {}).get(name, name) for name, _ in named]
    sound = {
        name: {x: ends for x, ends in found.items() if fits(1.0, ends[0]) and fits(1.0, ends[1])}
        for name, found in (bars or {}).items()
    }
    drawn = _curves(named, looks_of(recipes), sound, steps=steps)
    curves, lines = drawn[: len(shown)], drawn[len(shown) :]
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in drawn for _, y in curve.points]
    ys += [end for curve in drawn for ends in curve.ends.values() for end in ends]
    ys += [0.0] if from_zero and "y" not in logs else []
    across = log_axis([min(xs) / _ROOM, max(xs) * _ROOM]) if "x" in logs else x_axis(xs)
    frame = _Frame(
        x=named_axis(xs, x_names) if x_names else across,
        y=log_axis(ys, widen=True) if "y" in logs else y_axis(ys),
        x_label=x_label,
        y_label=y_label,
    )
    lines = [
        replace(line, look=line.look if recipe in _PLACES else "dashed", dash=_dash(n), shape="")
        for n, (line, recipe) in enumerate(zip(lines, recipes[len(shown) :], strict=True))
    ]
    return _figure(frame, curves, [], lines)


def _curves(
    named: Sequence[tuple[str, Points]],
    looks: Sequence[tuple[str, str, str]],
    bars: Mapping[str, Ends] | None = None,
    *,
    steps: bool = False,
) -> list[_Curve]:
    """Return the curves of some points, each with its look and the intervals at its points."""
    known = bars or {}
    return [
        _Curve(
            name=name,
            points=points,
            look=look,
            shape=shape,
            dash=dash,
            ends={x: known[name][x] for x, _ in points if x in known.get(name, {})},
            steps=steps,
        )
        for (name, points), (look, shape, dash) in zip(named, looks, strict=True)
    ]


def looks_of(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the colour's class, the shape and the dash of each name in a chart.

    A name of `_PLACES` has its own colour, others take colours that are left. Of several curves of
    one colour the later ones have other shapes and are dashed.
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


def colour_of(name: str) -> str:
    """Return the colour of a recipe on a white page, for pictures that have no style sheet.

    What is no recipe is grey, as on a page.
    """
    found: dict[str, str] = dict(re.findall(r"--(\w+):(#\w+)", STYLE.partition("@media")[0]))
    return found[looks_of([name])[0][0] if name in _PLACES else "soft"]


def log_chart(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    dashed: Mapping[str, Points] | None = None,
    low: float = 1e-3,
) -> str:
    """Return a figure of named curves from `low` to 1 on two logarithmic axes; "" without curves.

    What is below `low`, also 0, is drawn on the edge: logarithms have no place for it. `dashed`
    curves are for comparison. All curves are thinned.
    """
    shown = {name: _finite(points) for name, points in series.items()}
    if not _is_curve(shown):
        return ""
    shown = {name: points for name, points in shown.items() if points}
    curves = _curves(list(shown.items()), looks_of(list(shown)))
    beside = [
        _Curve(name=name, points=_finite(points), look=("dashed", "bold")[n % 2], dash=_dash(n))
        for n, (name, points) in enumerate((dashed or {}).items())
        if _finite(points)
    ]
    axis = log_axis([low, 1.0])
    frame = _Frame(x=axis, y=axis, x_label=x_label, y_label=y_label)
    return _figure(frame, curves, beside, [], most=200)


def thinned(points: Points, most: int = 200) -> list[tuple[float, float]]:
    """Return about `most` of the points, equally far apart along the curve, and both ends.

    Points that are not finite are left out.
    """
    finite = _finite(points)
    return [finite[index] for index in _kept(finite, most)]


def _kept(points: Points, most: int) -> list[int]:
    """Return which points are kept by `thinned`."""
    steps = [abs(b[0] - a[0]) + abs(b[1] - a[1]) for a, b in itertools.pairwise(points)]
    if not math.isfinite(sum(steps)):  # The numbers are so large that their sum overflows.
        steps = [1.0] * len(steps)
    total, walked, last = sum(steps), 0.0, -1
    kept = [0][: len(points)]
    for index, step in enumerate(steps, start=1):
        walked += step
        place = int(walked / total * most) if total else 0
        if place > last and step:
            kept.append(index)
            last = place
    if len(points) > 1 and points[kept[-1]] != points[-1]:
        kept.append(len(points) - 1)
    return kept


def _is_curve(series: Mapping[str, Points]) -> bool:
    """Return whether there is anything to draw: one point is a number, and no chart."""
    return any(len({x for x, _ in points}) > 1 for points in series.values())


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _figure(
    frame: _Frame,
    curves: Sequence[_Curve],
    beside: Sequence[_Curve],
    levels: Sequence[_Curve],
    most: int | None = None,
) -> str:
    """Return the figure: the chart, and below it the names of its curves."""
    parts, labels = [_axes(frame)], []
    for level in levels:
        y = frame.place(frame.x.low, level.points[0][1])[1]
        parts.append(_level(frame, level, y))
        labels.append((y, level.name, level.look))
    for curve in (*beside, *curves):
        placed = [frame.place(x, y) for x, y in curve.points]
        kept = range(len(placed)) if most is None else _kept(placed, most)
        parts.append(_line([placed[index] for index in kept], curve))
        labels.append((placed[-1][1], curve.name, curve.look))
        if curve.shape:
            parts += _dots(frame, curve, placed)
    crowded = len(labels) > _BESIDE
    if not crowded:
        for y, name, look in _apart(labels):
            parts.append(_text(_WIDTH - _RIGHT + 6, y + 4, _cut(name), "start", f"name {look}"))
    logs = [n for n, axis in (("x", frame.x), ("y", frame.y)) if axis.is_log]
    said = f"{frame.y_label} against {frame.x_label}" + {
        0: "", 1: f", {logs[0] if logs else ''} logarithmic", 2: ", both logarithmic"
    }[len(logs)]  # fmt: skip
    cut_any = crowded or any(len(name) > _LETTERS for _, name, _ in labels)
    return (
        f'<figure><div class="up note">↑ {html_text(frame.y_label)}</div>'
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="xMinYMid slice"'
        f' role="img" tabindex="0" aria-label="{html_text(said)}">'
        + "".join(parts)
        + f"</svg>{_key(curves, beside, levels, always=cut_any)}</figure>"
    )


def _axes(frame: _Frame) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value, text in frame.y.ticks.items():
        y = frame.place(frame.x.low, value)[1]
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, text, "end"))
    many = len(frame.x.ticks) > 5
    for n, (value, text) in enumerate(frame.x.ticks.items()):
        x = frame.place(value, frame.y.low)[0]
        parts.append(_text(x, bottom + 16, text, "middle", f"tick{' less' * (many and n % 2)}"))
    return (
        "".join(parts)
        + f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        + _text((_LEFT + right) / 2, _HEIGHT - 6, frame.x_label, "middle", "under")
        + f'<text class="side" transform="translate(11 {(bottom + _TOP) / 2}) rotate(-90)"'
        f' text-anchor="middle">{html_text(frame.y_label)}</text>'
    )


def _level(frame: _Frame, level: _Curve, y: float) -> str:
    """Return a horizontal line, and the interval around it as a band."""
    right = _WIDTH - _RIGHT
    said = f"{level.name}: {frame.y.says(level.points[0][1])}"
    band = ""
    for ends in level.ends.values():
        low, high = (frame.place(frame.x.low, end)[1] for end in ends)
        said += f" ({frame.y.says(ends[0])} to {frame.y.says(ends[1])})"
        band = (
            f'<rect class="band {level.look}" x="{_LEFT}" y="{high:.1f}" width="{right - _LEFT}"'
            f' height="{low - high:.1f}"/>'
        )
    return (
        f'{band}<line class="level {level.look}" x1="{_LEFT}" y1="{y:.1f}" x2="{right}"'
        f' y2="{y:.1f}"{level.dash}><title>{html_text(said)}</title></line>'
    )


def _line(points: Points, curve: _Curve) -> str:
    if curve.steps:
        corners = [(b[0], a[1]) for a, b in itertools.pairwise(points)]
        points = [p for both in zip(points, [*corners, points[-1]], strict=True) for p in both][:-1]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{curve.look}" points="{path}"{curve.dash}/>'


def _dots(frame: _Frame, curve: _Curve, placed: Points) -> list[str]:
    """Return the points of a curve that can be hovered, with their intervals."""
    parts = []
    few = len(placed) <= _DOTS
    told = {curve.points[index][0] for index in _kept(placed, _BARS)}
    for x, (low, high) in curve.ends.items():
        if not few and x not in told:
            continue
        (at, bottom), (_, top) = frame.place(x, low), frame.place(x, high)
        parts.append(
            f'<path class="bar {curve.look}"'
            f' d="M{at:.1f} {bottom:.1f}V{top:.1f}M{at - 4:.1f} {bottom:.1f}h8'
            f'M{at - 4:.1f} {top:.1f}h8"/>'
        )
    for index in range(len(placed)) if few else _kept(placed, _DOTS):
        (x, y), (left, top) = curve.points[index], placed[index]
        ends = curve.ends.get(x)
        between = f" ({frame.y.says(ends[0])} to {frame.y.says(ends[1])})" if ends else ""
        said = html_text(
            f"{curve.name} — {frame.x_label} {frame.x.says(x)}: {frame.y.says(y)}{between}"
        )
        parts.append(
            f'<path class="dot {curve.look}{"" if few else " quiet"}" d="{curve.shape}"'
            f' transform="translate({left:.1f} {top:.1f})" data-x="{x:g}" data-y="{y:g}"'
            f' data-tip="{said}"><title>{said}</title></path>'
        )
    return parts


def _key(
    curves: Sequence[_Curve], beside: Sequence[_Curve], levels: Sequence[_Curve], *, always: bool
) -> str:
    """Return the names below the chart; only a phone shows them, unless it is `always`."""
    names = [(curve.name, curve.look, curve.shape, curve.dash) for curve in (*curves, *beside)]
    names += [
        (f"{level.name} ({level.points[0][1]:.3g})", level.look, "", level.dash) for level in levels
    ]
    items = "".join(
        f'<li><svg class="{look}" viewBox="0 0 22 12" aria-hidden="true">'
        f'<line x1="0" y1="6" x2="22" y2="6"{dash}/>'
        + (f'<path d="{shape}" transform="translate(11 6)"/>' if shape else "")
        + f"</svg><span>{html_text(name)}</span></li>"
        for name, look, shape, dash in names
    )
    return f'<ul class="key{" all" if always else ""}">{items}</ul>'


def _apart(labels: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Move labels down until none overlaps another, then move those below the axis back up."""
    placed: list[tuple[float, str, str]] = []
    for y, name, look in sorted(labels):
        below = max(y, placed[-1][0] + 14) if placed else y
        placed.append((below, name, look))
    lowest: float = _HEIGHT - _BOTTOM
    lifted = []
    for y, name, look in reversed(placed):
        lifted.append((min(y, lowest), name, look))
        lowest = lifted[-1][0] - 14
    return lifted


def _dash(number: int) -> str:
    """Return how a line for comparison is dashed, so that it can be told from the one before."""
    return f' stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'


def _cut(name: str) -> str:
    """Return a name that fits beside the chart: names of runs often differ at their end alone."""
    return name if len(name) <= _LETTERS else f"{name[:6]}…{name[7 - _LETTERS :]}"


def _text(x: float, y: float, text: str, anchor: str, look: str = "") -> str:
    kind = f' class="{look}"' if look else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(text)}</text>'
