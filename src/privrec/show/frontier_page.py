"""The page of quality against privacy."""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.words import epsilon_text
from privrec.show.charts import line_chart
from privrec.show.page import between, html_link, html_table, html_text, note, page
from privrec.show.sections import boxes, difference_words

_K = "20"


def render_frontier(
    frontier: Mapping[str, Any],
    *,
    warning: str,
    names: Sequence[str],
    reports: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Return the page of a `frontier.json`: the curve, the table, and what the figures mean.

    `names` are the recipes with noise and without. `reports` has for each ε as text the addresses
    of its runs' reports, by what to call them.
    """
    points = frontier["points"]
    title = f"Quality against privacy on {frontier['data']}"
    said = [epsilon_name(point["epsilon"]) for point in points]
    bars = {float(i): ends for i, point in enumerate(points) if (ends := ends_of(point, _K))}
    chart = line_chart(
        {"PrivRec+": [(float(i), float(point["hits"][_K])) for i, point in enumerate(points)]},
        x_label="ε of the mechanism",
        y_label=f"Hits@{_K}",
        levels=frontier["lines"],
        x_names={float(i): name for i, name in enumerate(said)},
        bars={"PrivRec+": bars},
        from_zero=True,
    )
    noised, bare = names
    which = f"∞ is {bare}, which has no noise; the others are {noised}"
    if "∞" not in said:
        which = f"All points are {noised}"
    around = " Bars are 95 % intervals." if bars else ""
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
