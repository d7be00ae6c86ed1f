"""Parts of a report that an evaluation may have; older files lack them."""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.show.charts import line_chart
from privrec.show.page import between, html_table, html_text, note, table
from privrec.show.worth import around, digits, signed

Document = Mapping[str, Any]
_K = "20"


def warnings_html(evaluation: Document) -> str:
    """Return the warnings of an evaluation as boxes."""
    return boxes(evaluation.get("warnings", []))


def boxes(lines: Sequence[str]) -> str:
    """Return each warning as a box."""
    return "".join(f'<p class="warning">{html_text(str(line))}</p>' for line in lines)


def difference_words(found: Document) -> str:
    """Return a difference to a reference in words, by its interval.

    >>> difference_words({"by": 0.0101, "low": 0.007, "high": 0.013})
    'better by 0.010 ± 0.003'
    >>> difference_words({"by": -0.02, "low": -0.03, "high": -0.01})
    'worse by 0.020 ± 0.010'
    >>> difference_words({"by": 0.001, "low": -0.002, "high": 0.004})
    'no clear difference: 0.001 ± 0.003'
    """
    return " ".join(_difference(found))


def _difference(found: Document) -> tuple[str, str]:
    """Return how a difference is called, and its figure."""
    by, low, high = (float(found[name]) for name in ("by", "low", "high"))
    ends = around(by=by, low=low, high=high)
    if low <= 0 <= high:
        return "no clear difference:", f"{signed(by).removeprefix('+')}{ends}"
    return ("better by" if low > 0 else "worse by"), f"{digits(abs(by))}{ends}"


def differences_html(differences: Mapping[str, Document], name: str) -> str:
    """Return by how much a run is better than each reference; "" if that is not known."""
    # A reference that was trained as a run is not compared with itself.
    others = {other: found for other, found in differences.items() if other != name}
    ks = list(dict.fromkeys(k for found in others.values() for k in found))
    if not ks:
        return ""

    def cell(found: Document | None) -> str:
        if not found or None in found.values():
            return "-"
        called, by = _difference(found)
        return f'<span class="ends">{called}</span> {by}'

    rows = [
        [html_text(other), *(cell(found.get(k)) for k in ks)] for other, found in others.items()
    ]
    words = (
        "Differences are over the same people, person by person; behind ± is the longer arm"
        " of the 95 % interval."
    )
    head = [html_text(f"{name} against"), *(f"@{k}" for k in ks)]
    return f"<h3>How sure is that?</h3>{html_table(head, rows, name='Differences')}{note(words)}"


Looks = tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]
"""Points (rounds played, Hits@k), and the ends of the interval by the x of a point."""


def looks_in(rounds: Sequence[Document], k: str) -> Looks:
    """Return what the validation people showed at k, with its interval where that is known."""
    points, ends = [], {}
    for line in rounds:
        hits = line.get("validation", {}).get(k)
        if hits is None:
            continue
        at = float(line["round"] + 1)
        points.append((at, float(hits)))
        if both := line.get("validation_interval", {}).get(k):
            ends[at] = (float(both[0]), float(both[1]))
    return points, ends


def validation_html(
    looks: Mapping[str, Looks], *, y_label: str, kinds: Mapping[str, str] | None = None
) -> str:
    """Return the curves of validation people, from 0 on and with intervals; "" without curves.

    Without 0 on the axis, differences that the interval covers would look large.
    """
    bars = {name: ends for name, (_, ends) in looks.items()}
    chart = line_chart(
        {name: points for name, (points, _) in looks.items()},
        x_label="rounds",
        y_label=y_label,
        bars=bars,
        kinds=kinds,
        from_zero=True,
    )
    if not chart or not any(bars.values()):
        return chart
    words = (
        "Bars are 95 % intervals: how far the figure of other such people may be from this one. All"
        " points are of the same people, so a change from point to point is surer than it looks."
    )
    return chart + note(words)


def by_items_html(evaluation: Document) -> str:
    """Return quality against the number of items on a person's device; "" if that is not known."""
    groups = [one for one in evaluation.get("by_items", []) if one["hits"].get(_K) is not None]
    if not groups:
        return ""
    ours = str(evaluation["recipe"])
    others = [name for name in groups[0].get("references", {}) if name != ours]
    names = {float(n): _span(one) for n, one in enumerate(groups)}
    series = {ours: [(float(n), float(one["hits"][_K])) for n, one in enumerate(groups)]}
    for other in others:
        found = [
            (float(n), one.get("references", {}).get(other, {}).get(_K))
            for n, one in enumerate(groups)
        ]
        series[other] = [(n, float(hits)) for n, hits in found if hits is not None]
    bars = {
        ours: {
            float(n): (float(ends[0]), float(ends[1]))
            for n, one in enumerate(groups)
            if (ends := one.get("interval", {}).get(_K))
        }
    }
    rows = [
        (
            html_text(_span(one)),
            f"{one['people']:,}",
            _between(one["hits"][_K], one.get("interval", {}).get(_K)),
            *(_number(one.get("references", {}).get(other, {}).get(_K)) for other in others),
        )
        for one in groups
    ]
    chart = line_chart(
        series,
        x_label="items on the device",
        y_label=f"Hits@{_K}",
        x_names=names,
        bars=bars,
        from_zero=True,
    )
    head = [html_text(name) for name in ("items on the device", "people", ours, *others)]
    words = f"Hits@{_K} of people with so many items on their device. Bars are 95 % intervals"
    words += f" of {ours}."
    return (
        "<h2>How much a person's own data helps</h2>"
        + chart
        + html_table(head, rows, name="Quality by the number of items", look="short")
        + note(words)
    )


def beyond_html(evaluation: Document) -> str:
    """Return coverage, novelty and what popularity finds too; "" if that is not known."""
    references = {name: one.get("beyond") for name, one in evaluation["references"].items()}
    found = {str(evaluation["recipe"]): evaluation.get("beyond"), **references}
    rows = [
        [name, *(_number(beyond.get(what, {}).get(_K), decimals) for what, decimals in _BEYOND)]
        for name, beyond in found.items()
        if beyond
    ]
    if not rows:
        return ""
    head = ("", "coverage", "novelty, bits", "hits that popularity has too")
    kinds = ["ours"] if evaluation.get("beyond") else []
    words = (
        f"Of lists of {_K} items. Coverage is the share of the catalogue that is in somebody's"
        " list. Novelty is the mean of -log2 of the share of training people who have an item:"
        " each bit more means that half as many have it. The last column is the share of the hits"
        " that the list of the most popular items has too."
    )
    return f"<h2>Beyond hits</h2>{table(head, rows, kinds=kinds, name='Beyond hits')}{note(words)}"


_BEYOND = (("coverage", 3), ("novelty", 2), ("popular_hits", 3))


def examples_html(examples: Sequence[Document]) -> str:
    """Return some people with what they liked and what they get; "" without any."""
    if not examples:
        return ""
    cards = "".join(_card(n, one) for n, one in enumerate(examples, start=1))
    words = (
        "Test people of a public or made-up data set, by the number of items on their device. The"
        " list has items that she has no line of. Marked with ✓ are those that she liked in the"
        " part that was hidden. An item without a mark need not be wrong: she may never have met"
        " it."
    )
    title = "One person" if len(examples) == 1 else f"{len(examples)} people"
    return f'<h2 id="examples">{title}</h2>{note(words)}<div class="cards">{cards}</div>'


def _card(number: int, one: Document) -> str:
    liked = " · ".join(f"<bdi>{html_text(title)}</bdi>" for title in one["liked"])
    more = f", and {one['more']:,} more" if one.get("more") else ""
    listed = "".join(
        f'<li class="hit"><bdi>{html_text(item["title"])}</bdi>\u00a0✓</li>'
        if item["hit"]
        else f"<li><bdi>{html_text(item['title'])}</bdi></li>"
        for item in one["list"]
    )
    hits = sum(bool(item["hit"]) for item in one["list"])
    return (
        f'<div class="card"><h3>Person {number}</h3>'
        f"<p>Likes {liked}{more}.</p>"
        f"<p>Gets ({hits} of {one['held_out']:,} hidden likes found):</p><ol>{listed}</ol></div>"
    )


def _span(group: Document) -> str:
    low, high = group["from"], group.get("to")
    if high is None:
        return f"{low}+"
    return str(low) if low == high else f"{low}–{high}"


def _number(value: float | None, decimals: int = 3) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _between(value: float, ends: Sequence[float] | None) -> str:
    return between(_number(value), f"({ends[0]:.3f}–{ends[1]:.3f})" if ends else "")
