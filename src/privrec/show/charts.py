"""Line charts as SVG text: reports work without a network, a script or a library."""

import html
import math
from collections.abc import Mapping, Sequence

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 130, 16, 40
_COLOURS = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#b35806", "#4d4d4d")


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
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
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
