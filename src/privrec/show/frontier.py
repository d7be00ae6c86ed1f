"""The page and the picture of quality against privacy."""

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privrec.privacy.statement import epsilon_text
from privrec.runs.folder import RunFolder, write_whole
from privrec.runs.frontier import NO_NOISE, WITH_NOISE, WITHOUT, Frontier, experiment_line, place_of
from privrec.show.charts import colour_of, line_chart, log_axis, y_axis
from privrec.show.page import between, html_link, html_table, html_text, note, page, path_link
from privrec.show.report import boxes, difference_words
from privrec.show.write import write_missing_reports

_K = "20"


def write_frontier(frontier: Frontier, seeds: Sequence[int], out: Path) -> None:
    """Write `frontier.html` and `frontier.png` to a folder, and the reports of its runs."""
    asked = [math.inf if one.epsilon is None else one.epsilon for one in frontier.points]
    write_missing_reports(place_of(out, epsilon, seed) for epsilon in asked for seed in seeds)
    write_whole(out / "frontier.html", render(frontier, seeds).encode())
    write_whole(out / "frontier.png", draw(frontier))


def render(frontier: Frontier, seeds: Sequence[int] = ()) -> str:
    """Return the page, with links to the reports of the runs of these seeds beside it."""
    reports = {}
    for point in frontier.points:
        asked = math.inf if point.epsilon is None else point.epsilon
        folders = {seed: RunFolder(path=place_of(Path(), asked, seed)) for seed in seeds}
        reports[epsilon_name(point.epsilon)] = {
            f"seed {seed}": path_link(str(folder.report_path)) for seed, folder in folders.items()
        }
    return render_frontier(
        frontier.as_json(),
        warning=experiment_line(frontier),
        names=(WITH_NOISE, NO_NOISE),
        reports=reports,
    )


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


def draw(frontier: Frontier) -> bytes:
    """Return the curve as a PNG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = canvas.subplots()
    points = [point for point in frontier.points if point.epsilon is not None]
    places = [point.epsilon or math.nan for point in points]
    hits = [point.hits[_K] for point in points]
    ends = [point.interval.get(_K, [point.hits[_K]] * 2) for point in points]
    colour = colour_of(WITH_NOISE)
    bars = _bars(hits, ends)
    axes.errorbar(places, hits, yerr=bars, marker="o", capsize=3, color=colour, label=WITH_NOISE)
    # As on the page: what has no noise is another recipe, and a level.
    bare = [point for point in frontier.points if point.epsilon is None]
    levels = [*((NO_NOISE, point.hits[_K]) for point in bare), *frontier.lines.items()]
    bands = [point.interval[_K] for point in bare if _K in point.interval]
    edges = [end for both in (*ends, *bands) for end in both]
    same = y_axis([0.0, *hits, *edges, *(level for _, level in levels)])
    axes.set_ylim(same.low, same.high)
    axes.set_yticks(list(same.ticks), list(same.ticks.values()))
    for place, value, (low, high) in zip(places, hits, ends, strict=True):
        above = high < 0.94 * same.high
        axes.annotate(
            f"{value:.3f}",
            (place, high if above else low),
            (0, 6 if above else -6),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # A line may be behind it.
        )
    kinds = level_kinds(NO_NOISE)
    for (name, level), style in zip(levels, itertools.cycle(("--", ":", "-."))):
        colour = colour_of(kinds.get(name, name))
        axes.axhline(level, linestyle=style, color=colour, label=f"{name} ({level:.3f})")
    for low, high in bands:
        axes.axhspan(low, high, color=colour_of(WITHOUT), alpha=0.12, linewidth=0)
    if places:
        across = log_axis([min(places) / 1.25, max(places) * 1.25])
        axes.set_xscale("log")
        axes.set_xlim(across.low, across.high)
        axes.set_xticks(list(across.ticks), list(across.ticks.values()))
        axes.minorticks_off()
    axes.set_xlabel(
        f"ε asked for (logarithmic), at δ = {frontier.delta:g}, per person; an experiment"
    )
    axes.set_ylabel(f"Hits@{_K}")
    axes.set_title(f"{frontier.data}: quality against privacy")
    axes.legend(loc="lower right", fontsize="small")
    picture = io.BytesIO()
    canvas.savefig(picture, format="png")
    return picture.getvalue()


def _bars(hits: Sequence[float], ends: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return how far each point's interval reaches down, and up."""
    down = [max(0.0, hit - low) for hit, (low, _) in zip(hits, ends, strict=True)]
    return [down, [max(0.0, high - hit) for hit, (_, high) in zip(hits, ends, strict=True)]]
