"""The page of quality against privacy."""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.statement import epsilon_text
from privrec.show.charts import line_chart
from privrec.show.figures import _K
from privrec.show.page import between, html_link, html_table, html_text, note, page
from privrec.show.report import boxes, difference_words


def render_frontier(
    frontier: Mapping[str, Any],
    *,
    warning: str,
    names: Sequence[str],
    reports: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return the page of a `frontier.json`: the curve, the table, and what the figures mean.

    `names` are the recipe with noise, and what the level without noise is called. `reports` has
    for each ε as text the addresses of its runs' reports, by what to call them.
    """
    points = frontier["points"]
    title = f"Quality against privacy on {frontier['data']}"
    noised, without = names
    chart, bars = _chart(frontier, noised, without)
    said = [epsilon_name(point["epsilon"]) for point in points]
    which = f"All points are {noised}"
    if "∞" in said:
        which += f". ∞ is the level {without}: another recipe"
    around = " Bars, and the band around a level, are 95 % intervals." if bars else ""
    seeds = points[0]["seeds"]
    splits = "One split" if seeds == 1 else f"Mean over {seeds} splits"
    return page(
        title,
        [
            f"<h1>{html_text(title)}</h1>",
            f'<p class="privacy">{html_text(warning)}</p>',
            chart,
            _table(points, said, reports or {}, title),
            boxes(frontier.get("warnings", ())),
            note(
                f"{splits}, on people who never took part; δ = {frontier['delta']:g}, one whole"
                f" person added or removed. {which}. The dashed lines have no noise.{around}"
            ),
        ],
    )


def _chart(frontier: Mapping[str, Any], noised: str, without: str) -> tuple[str, bool]:
    """Return the curve over ε as numbers, and whether it has intervals.

    What has no noise is another recipe and has no place on the axis: it is a level.
    """
    points = [point for point in frontier["points"] if point["epsilon"] is not None]
    bare = next((point for point in frontier["points"] if point["epsilon"] is None), None)
    band = ends_of(bare, _K) if bare else None
    bars = {float(one["epsilon"]): ends for one in points if (ends := ends_of(one, _K))}
    chart = line_chart(
        {noised: [(float(one["epsilon"]), float(one["hits"][_K])) for one in points]},
        x_label=f"ε asked for, at δ = {frontier['delta']:g} (logarithmic)",
        y_label=f"Hits@{_K}",
        levels={**({without: bare["hits"][_K]} if bare else {}), **frontier["lines"]},
        bars={noised: bars, without: {0.0: band} if band else {}},
        kinds=level_kinds(without),
        logs="x",
        from_zero=True,
    )
    return chart, bool(bars or band)


def level_kinds(without: str) -> dict[str, str]:
    """Return which recipe each level is of, for its colour."""
    return {without: without.partition(",")[0], "EASE, centralised": "ease"}


def ends_of(point: Mapping[str, Any], k: str) -> tuple[float, float] | None:
    """Return the ends of the interval of Hits@k at one point; None where it has none."""
    ends = point.get("interval", {}).get(k)
    return None if not ends else (float(ends[0]), float(ends[1]))


def epsilon_name(epsilon: float | None) -> str:
    """Return an asked-for ε as the axis shows it."""
    return "∞" if epsilon is None else f"{epsilon:g}"


def _table(
    points: Sequence[Mapping[str, Any]],
    said: Sequence[str],
    reports: Mapping[str, Mapping[str, str]],
    title: str,
) -> str:
    ks = list(points[0]["hits"])
    above = any(point.get("above") for point in points)
    linked = any(reports.values())
    head = [
        "ε asked for",
        "ε of the mechanism",
        *(f"@{k}" for k in ks),
        *([f"@{_K} against popularity"] if above else []),
        *(["reports"] if linked else []),
    ]
    rows = []
    for name, point in zip(said, points, strict=True):
        spent = point["epsilon_of_mechanism"]
        links = " ".join(html_link(what, to) for what, to in reports.get(name, {}).items())
        rows.append(
            [
                name,
                "-" if spent is None else epsilon_text(spent, 3),
                *(_cell(point["hits"][k], ends_of(point, k)) for k in ks),
                *([_against(point.get("above"))] if above else []),
                *([links] if linked else []),
            ]
        )
    return html_table(head, rows, name=title, look="wide short")


def _against(found: Mapping[str, float] | None) -> str:
    return html_text(difference_words(found)) if found else "-"


def _cell(value: float, ends: tuple[float, float] | None) -> str:
    return between(f"{value:.3f}", "" if ends is None else f"({ends[0]:.3f}–{ends[1]:.3f})")
