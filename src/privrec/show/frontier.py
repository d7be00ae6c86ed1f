"""The page and the picture of Hits@20 against ε."""

import math
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from privrec.privacy.statement import epsilon_text
from privrec.runs.figures import arm_text, figure, signed_with_arm
from privrec.runs.folder import RunFolder, write_whole
from privrec.runs.frontier import (
    NO_NOISE,
    WITH_NOISE,
    WITHOUT,
    Frontier,
    Point,
    experiment_line,
    place_of,
)
from privrec.show.charts import line_chart
from privrec.show.page import Cell, Table, html_link, path_link, render
from privrec.show.write import write_missing_reports

_K = "20"
_KINDS = {NO_NOISE: WITHOUT, "EASE, centralised": "ease"}
"""The recipe of a level, which decides its colour."""


def write_frontier(frontier: Frontier, seeds: Sequence[int], out: Path) -> list[Path]:
    """Write the page, its chart as an SVG file, and missing reports; return the first two.

    There is no SVG file if there is nothing to draw, for example if no run has noise.
    """
    asked = [_asked(point) for point in frontier.points]
    write_missing_reports(place_of(out, epsilon, seed) for epsilon in asked for seed in seeds)
    title = f"{frontier.data}: quality against privacy, an experiment"
    files = {
        "frontier.html": render_frontier(frontier, seeds),
        "frontier.svg": draw_frontier(frontier, title=title),
    }
    written = [out / name for name, text in files.items() if text]
    for place in written:
        write_whole(place, files[place.name].encode())
    return written


def render_frontier(frontier: Frontier, seeds: Sequence[int] = ()) -> str:
    """Return the page, with links to the reports of the runs with these seeds."""
    title = f"Quality against privacy on {frontier.data}"
    return render(
        "frontier.html",
        title=title,
        warning=experiment_line(frontier),
        chart=draw_frontier(frontier),
        points=frontier_table(frontier, seeds),
        warnings=frontier.warnings,
        seeds=frontier.points[0].seeds,
        delta=f"{frontier.delta:g}",
        noised=WITH_NOISE,
        without=NO_NOISE,
        has_level=_bare(frontier) is not None,
        has_bars=any(_K in point.interval for point in frontier.points),
    )


def _asked(point: Point) -> float:
    return math.inf if point.epsilon is None else point.epsilon


def _bare(frontier: Frontier) -> Point | None:
    """Return the point without noise; None if there is none.

    It has no finite ε, so charts show it as a horizontal line (level).
    """
    return next((point for point in frontier.points if point.epsilon is None), None)


def _ends(point: Point | None) -> tuple[float, float] | None:
    """Return the ends of the interval of Hits@20; None if they are not known."""
    ends = point.interval.get(_K) if point else None
    return (ends[0], ends[1]) if ends else None


def draw_frontier(frontier: Frontier, *, title: str = "") -> Markup:
    """Return the curve of Hits@20 against ε; with a `title`, as the text of an SVG file."""
    noised = {point.epsilon: point for point in frontier.points if point.epsilon is not None}
    bare = _bare(frontier)
    band = _ends(bare)
    return line_chart(
        {WITH_NOISE: [(epsilon, point.hits[_K]) for epsilon, point in noised.items()]},
        x_label=f"ε asked for, at δ = {frontier.delta:g} (logarithmic)",
        y_label=f"Hits@{_K}",
        levels={**({NO_NOISE: bare.hits[_K]} if bare else {}), **frontier.lines},
        bars={
            WITH_NOISE: {x: ends for x, point in noised.items() if (ends := _ends(point))},
            NO_NOISE: {1.0: band} if band else {},
        },
        kinds=_KINDS,
        logs="x",
        from_zero=True,
        title=title,
    )


def frontier_table(frontier: Frontier, seeds: Sequence[int] = ()) -> Table:
    """Return a table with a row for each ε; with `seeds`, it has links to the runs' reports."""
    points, ks = frontier.points, list(frontier.points[0].hits)
    head = ["epsilon", "spent", *(f"@{k}" for k in ks), f"± @{_K}"]
    rows: list[list[Cell]] = [
        [
            "∞" if point.epsilon is None else f"{point.epsilon:g}",
            "no noise"
            if point.epsilon_of_mechanism is None
            else epsilon_text(point.epsilon_of_mechanism, 3),
            *(figure(point.hits[k]) for k in ks),
            arm_text(point.hits[_K], _ends(point)),
            signed_with_arm(point.above),
            *([_report_links(point, seeds)] if seeds else []),
        ]
        for point in points
    ]
    head += ["over popularity", *(["reports"] if seeds else [])]
    name = f"Hits@k on {frontier.data}, delta {frontier.delta:g}"
    return Table(head=head, rows=rows, name=name, look="wide short")


def _report_links(point: Point, seeds: Sequence[int]) -> Markup:
    folders = {seed: RunFolder(path=place_of(Path(), _asked(point), seed)) for seed in seeds}
    return Markup(" ").join(
        html_link(f"seed {seed}", path_link(str(folder.report_path)))
        for seed, folder in folders.items()
    )
