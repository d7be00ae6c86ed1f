"""Line charts as SVG text: reports work without a network, a script or a library."""

import html
import itertools
import math
from collections.abc import Mapping, Sequence

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 130, 16, 40
_COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#b35806", "#4d4d4d")

_GREYS = ("#777", "#111")


def line_chart(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, float] | None = None,
    x_names: Mapping[float, str] | None = None,
) -> str:
    """Return an SVG of named curves; `levels` are dashed horizontal lines, such as a baseline.

    `x_names` are the labels of an x axis that is not numeric.

    Points that are not finite, such as the loss of a run that diverged, are left out.
    """
    series = {name: finite for name, points in series.items() if (finite := _finite(points))}
    flat = {name: level for name, level in (levels or {}).items() if math.isfinite(level)}
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points] + list(flat.values())
    if not xs:
        return ""
    x_low, x_high = min(xs), max(*xs, min(xs) + 1)
    y_ticks = _ticks(*_with_room(min(ys), max(ys)))
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)

    def x_of(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_axes(x_label, y_label)]
    for tick in y_ticks:
        parts.append(_line(_LEFT, y_of(tick), _WIDTH - _RIGHT, y_of(tick), "#e5e5e5"))
        parts.append(_text(_LEFT - 6, y_of(tick) + 4, f"{tick:g}", "end"))
    names = x_names or {tick: f"{tick:g}" for tick in _ticks(x_low, x_high)}
    parts += [
        _text(x_of(x), _HEIGHT - _BOTTOM + 16, name, "middle")
        for x, name in names.items()
        if x_low <= x <= x_high
    ]
    labels: list[tuple[float, str, str]] = []
    for (name, points), colour in zip(series.items(), _cycle(len(series)), strict=True):
        parts.append(_curve([(x_of(x), y_of(y)) for x, y in points], colour))
        if len(points) <= 40:
            parts += [_dot(x_of(x), y_of(y), colour) for x, y in points]
        labels.append((y_of(points[-1][1]), name, colour))
    for name, level in flat.items():
        parts.append(_line(_LEFT, y_of(level), _WIDTH - _RIGHT, y_of(level), "#777", dashed=True))
        labels.append((y_of(level), name, "#555"))
    for y, name, colour in _apart(labels):
        parts.append(_text(_WIDTH - _RIGHT + 6, y + 4, name, "start", colour))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(y_label)}">'
        + "".join(parts)
        + "</svg>"
    )


def log_chart(
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    dashed: Mapping[str, Points] | None = None,
    low: float = 1e-3,
) -> str:
    """Return an SVG of named curves from `low` to 1 on two logarithmic axes; "" without curves.

    What is below `low`, also 0, is drawn on the edge: logarithms have no place for it. `dashed`
    curves are for comparison. All curves are thinned.
    """
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def share(value: float) -> float:
        return 1 - math.log(min(max(value, low), 1.0)) / math.log(low)

    def place(points: Points) -> list[tuple[float, float]]:
        return thinned(
            [
                (_LEFT + share(x) * width, _HEIGHT - _BOTTOM - share(y) * height)
                for x, y in _finite(points)
            ]
        )

    drawn = {name: found for name, points in series.items() if (found := place(points))}
    if not drawn:
        return ""
    parts = [_axes(x_label, y_label)]
    tick = low
    while tick <= 1.0000001:
        x, y = _LEFT + share(tick) * width, _HEIGHT - _BOTTOM - share(tick) * height
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "#e5e5e5"))
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", "end"))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{tick:g}", "middle"))
        tick *= 10
    labels: list[tuple[float, str, str]] = []
    for (name, curve), colour in zip(drawn.items(), _cycle(len(drawn)), strict=True):
        parts.append(_curve(curve, colour))
        labels.append((curve[-1][1], name, colour))
    for k, (name, points) in enumerate((dashed or {}).items()):
        if shown := place(points):
            grey = _GREYS[k % len(_GREYS)]
            parts.append(_curve(shown, grey, dashed=True))
            labels.append((shown[-1][1], name, grey))
    for y, name, colour in _apart(labels):
        parts.append(_text(_WIDTH - _RIGHT + 6, y + 4, name, "start", colour))
    said = html.escape(f"{y_label} against {x_label}, both logarithmic")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">'
        + "".join(parts)
        + "</svg>"
    )


def thinned(points: Points, most: int = 200) -> list[tuple[float, float]]:
    """Return about `most` of the points, equally far apart along the curve, and both ends."""
    steps = [abs(b[0] - a[0]) + abs(b[1] - a[1]) for a, b in itertools.pairwise(points)]
    total, walked, last = sum(steps), 0.0, -1
    kept = list(points[:1])
    for point, step in zip(points[1:], steps, strict=True):
        walked += step
        place = int(walked / total * most) if total else 0
        if place > last and step:
            kept.append(point)
            last = place
    if len(points) > 1 and kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _with_room(low: float, high: float) -> tuple[float, float]:
    """Return the range, widened if all values are equal."""
    size = max(abs(low), abs(high))
    if high - low > 1e-9 * size:
        return low, high
    return low - size / 2, high + (size / 2 or 1.0)


def _ticks(low: float, high: float) -> list[float]:
    """Return four to nine round numbers that span the range."""
    span = max(high - low, 1e-9)
    step = 10.0 ** len(str(int(span))) if span >= 1 else 1.0
    while span / step < 4:
        step /= 10
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 8)
    first, last = int(low // step), int(-(-high // step))
    return [round(k * step, 10) for k in range(first, last + 1)]


def _apart(labels: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Move labels down until none overlaps another, then move those below the axis back up."""
    placed: list[tuple[float, str, str]] = []
    for y, name, colour in sorted(labels):
        below = max(y, placed[-1][0] + 14) if placed else y
        placed.append((below, name, colour))
    lowest: float = _HEIGHT - _BOTTOM
    lifted = []
    for y, name, colour in reversed(placed):
        lifted.append((min(y, lowest), name, colour))
        lowest = lifted[-1][0] - 14
    return lifted


def _cycle(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]


def _axes(x_label: str, y_label: str) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    return (
        _line(_LEFT, bottom, right, bottom, "#333")
        + _line(_LEFT, _TOP, _LEFT, bottom, "#333")
        + _text((_LEFT + right) / 2, _HEIGHT - 6, x_label, "middle")
        + f'<text transform="translate(14 {(bottom + _TOP) / 2}) rotate(-90)" font-size="12"'
        f' text-anchor="middle" fill="#333">{html.escape(y_label)}</text>'
    )


def _curve(points: Points, colour: str, *, dashed: bool = False) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'
    )


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="{colour}">'
        f"{html.escape(text)}</text>"
    )


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
