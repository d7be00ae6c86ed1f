"""The HTML report of a run: one file, no network.

Parts of a report that an evaluation may have; older files lack them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privrec.privacy.paper import PRINTED_HITS
from privrec.runs.figures import (
    KS,
    around,
    data_words,
    digits,
    figure,
    figure_and_arm,
    is_papers_protocol,
    lines,
    protocol_of,
    protocol_words,
    signed,
)
from privrec.show.charts import line_chart
from privrec.show.page import (
    RAW_NOTE,
    Link,
    between,
    html_table,
    html_text,
    note,
    page,
    table,
)
from privrec.show.promise import promise_html

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


_UPPER_BOUND = "NCF, centralised"

Row = tuple[str, Mapping[str, float | None], str]
"""(name, Hits@k by k as text, kind: "ours", "reference" or "paper")"""


def table_rows(evaluation: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a run's table: ours, the references of the same run, the paper's."""
    rows: list[Row] = [(evaluation["recipe"], evaluation["hits"], "ours")]
    rows += [
        (name, figures["hits"], "reference")
        for name, figures in evaluation["references"].items()
        if name != evaluation["recipe"]
    ]
    return rows + _printed(evaluation)


def _printed(evaluation: Mapping[str, Any]) -> list[Row]:
    return paper_rows(evaluation["data"]) if is_papers_protocol(evaluation) else []


def paper_rows(data: str) -> list[Row]:
    """Return the figures printed in the paper for a data set."""
    return [(f"{name} (paper)", hits, "paper") for name, hits in PRINTED_HITS.get(data, {}).items()]


_TESTED = {
    "halves": "{:,} others who never took part",
    "leave-last": "the last like of {:,} people, which nobody trained on",
    "files": "the test file's likes of {:,} people, which nobody trained on",
}


_AMONG = {
    "unseen": "the items that she never met",
    "not-kept": "the items that are not on her device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a report shows beside figures: all of it is optional.

    `summary` says what the recipe is, `ledger` are the lines of the run's ledger, `examples` are
    people of a public data set, `attacked` is the summary of attacks and audits, and `links` lead
    to other pages of the run.
    """

    summary: str = ""
    ledger: Sequence[Mapping[str, Any]] = ()
    examples: Sequence[Mapping[str, Any]] = ()
    attacked: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[Link] = ()


def render_report(
    evaluation: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    beside: Beside | None = None,
) -> str:
    """Return the page of one run that was evaluated."""
    beside = beside or Beside()
    title = f"{evaluation['recipe']} on {data_words(evaluation)}, seed {evaluation['seed']}"
    differences = evaluation.get("differences", {})
    parts = [
        f"<h1>{html_text(title)}</h1>",
        f'<p class="lead">{html_text(_lead(evaluation, beside))}</p>',
        warnings_html(evaluation),
        f'<h2 id="quality">Hits@k on the test people{html_text(protocol_words(evaluation))}</h2>',
        hits_table(table_rows(evaluation), intervals_of(evaluation)),
        *(
            note(f"{line}.")
            for line in (sample_line(evaluation), *left_out_lines(evaluation))
            if line
        ),
        note(
            "References are fitted and tested in the same run. Rows marked (paper) are printed"
            " figures from another split."
        ),
        differences_html(differences, evaluation["recipe"]),
        _new_only(evaluation),
        _mark(evaluation, rounds),
        '<h2 id="privacy">What is promised</h2>',
        promise_html(evaluation["privacy"], beside.ledger),
        _attacked(beside.attacked),
        by_items_html(evaluation),
        _few_items(evaluation),
        beyond_html(evaluation),
        _curves(rounds),
        examples_html(beside.examples),
        _settings(settings),
        RAW_NOTE,
    ]
    return page(title, parts, links=beside.links)


def render_begun(
    title: str,
    privacy: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    *,
    next_step: str,
    beside: Beside,
) -> str:
    """Return the page of a run that was not evaluated; `next_step` is the command that does it."""
    parts = [
        f"<h1>{html_text(title)}</h1>",
        f'<p class="lead">{html_text(_sentence(beside.summary))}</p>' if beside.summary else "",
        (
            '<p class="warning">Nobody was tested yet, so there are no figures of quality. Next:'
            f" <code>{html_text(next_step)}</code></p>"
        ),
        '<h2 id="privacy">What is promised</h2>',
        promise_html(privacy, beside.ledger),
        _attacked(beside.attacked),
        _curves(rounds),
        _settings(settings),
        RAW_NOTE,
    ]
    return page(title, parts, links=beside.links)


def _lead(evaluation: Mapping[str, Any], beside: Beside) -> str:
    """Return what the run is and what it reached, in three sentences."""
    users = {**evaluation["users"], **_trained(beside.ledger)}
    protocol, candidates = protocol_of(evaluation)
    trained = f"Trained by {users['train']:,} people, tested" if "train" in users else "Tested"
    said = [
        _sentence(beside.summary),
        (
            f"{trained} on {_TESTED.get(protocol, '{:,} people').format(users['test'])}"
            f" ({users['skipped']:,} skipped: too few likes to test)."
        ),
    ]
    hits = evaluation["hits"].get("20")
    if hits is not None:
        said.append(
            f"Of a person's hidden likes, {100 * hits:.1f} % are among the first 20 when each is"
            f" ranked with {_AMONG.get(candidates, 'others')}{_beside_popular(evaluation)}."
        )
    return " ".join(filter(None, said))


def _trained(ledger: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many people trained, where the ledger has no noise: then it counts exactly.

    Recipes that fit in one go also fit the people who are kept for validation.
    """
    if not ledger or any(line["mechanism"] != "none" for line in ledger):
        return {}
    return {"train": max(line["sampling"]["users"] for line in ledger)}


def _beside_popular(evaluation: Mapping[str, Any]) -> str:
    popular = evaluation["references"].get("popularity", {}).get("hits", {}).get("20")
    if popular is None or evaluation["recipe"] == "popularity":
        return ""
    found = evaluation.get("differences", {}).get("popularity", {}).get("20")
    known = found and None not in found.values()
    sure = f": {difference_words(found)}" if known else ""
    return f"; the most popular items reach {100 * popular:.1f} %{sure}"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def _settings(settings: Mapping[str, Any]) -> str:
    rows = [(key, str(value)) for key, value in settings.items()]
    return (
        f"<details><summary>Settings</summary>{table([], rows, name='Settings', look='text short')}"
        "</details>"
    )


Intervals = Mapping[str, Mapping[str, Sequence[float]]]
"""For each row of a table, by name, the ends of an interval by k as text."""


def intervals_of(evaluation: Mapping[str, Any]) -> Intervals:
    """Return the intervals of Hits@k of each row; older files have them for samples alone."""
    rows = {**evaluation["references"], evaluation["recipe"]: evaluation}
    return {name: row["interval"] for name, row in rows.items() if "interval" in row}


def figure_between(value: float | None, ends: Sequence[float] | None) -> str:
    """Return a figure as text, with the ends of its interval if it has one."""
    return figure(value) if ends is None else f"{figure(value)} ({ends[0]:.3f}–{ends[1]:.3f})"


def hits_table(rows: Sequence[Row], intervals: Intervals | None = None) -> str:
    """Return an HTML table of Hits@k."""
    known = intervals or {}
    cells = [
        [html_text(name), *(_cell(hits[k], known.get(name, {}).get(k)) for k in KS)]
        for name, hits, _ in rows
    ]
    kinds = [kind for _, _, kind in rows]
    return html_table(["", *(f"@{k}" for k in KS)], cells, kinds=kinds, name="Hits@k")


def _cell(value: float | None, ends: Sequence[float] | None) -> str:
    return between(figure(value), "" if ends is None else f"({ends[0]:.3f}–{ends[1]:.3f})")


def sample_line(evaluation: Mapping[str, Any]) -> str:
    """Return that only some of the test people were drawn; "" if all were tested."""
    drawn = evaluation.get("sampled")
    if drawn is None:
        return ""
    return f"A sample of {drawn['people']:,} of {drawn['of']:,} test people was drawn"


def left_out_lines(evaluation: Mapping[str, Any]) -> list[str]:
    """Return which references were left out, and why."""
    left_out = evaluation.get("references_left_out", {})
    return [f"the reference {name} was left out: it {why}" for name, why in left_out.items()]


def _new_only(evaluation: Mapping[str, Any]) -> str:
    """Return the table over items that are new to the person; "" if it equals the main table."""
    new = evaluation.get("new_only", {}).get("hits") or evaluation["hits"]
    if all(new[k] is None or abs(new[k] - evaluation["hits"][k]) < 1e-12 for k in KS):
        return ""
    known = {evaluation["recipe"]: evaluation, **evaluation["references"]}
    found = {name: one["new_only"] for name, one in known.items() if "new_only" in one}
    found[evaluation["recipe"]] = evaluation["new_only"]
    rows: list[Row] = [
        (name, one["hits"], "ours" if name == evaluation["recipe"] else "reference")
        for name, one in found.items()
    ]
    ends = {name: one["interval"] for name, one in found.items() if "interval" in one}
    return (
        "<h2>Only items that are new to the person</h2>"
        + hits_table(rows, ends)
        + differences_html(evaluation["new_only"].get("differences", {}), evaluation["recipe"])
    )


def few_items_line(evaluation: Mapping[str, Any]) -> str:
    """Return what adaptation does for people with few items, in one line; "" if nobody has few."""
    few = evaluation.get("few_items") or {"people": 0}
    if not few["people"] or few["hits"]["20"] is None:
        return ""
    who = f"{few['people']:,} people with fewer than {few['fewer_than']} items on their device"
    if few["people"] == 1:
        who = who.replace("people", "person", 1)
    ends, ends_without = (few.get(name, {}).get("20") for name in ("interval", "interval_without"))
    line = f"{who}: Hits@20 {figure_and_arm(few['hits']['20'], ends)}"
    without = few["without_adaptation"]
    if without is None:
        return f"{line}; this recipe does not adapt"
    return f"{line} with adaptation, {figure_and_arm(without['20'], ends_without)} without"


def _few_items(evaluation: Mapping[str, Any]) -> str:
    line = few_items_line(evaluation)
    return f"<h2>People with little data</h2><p>{html_text(line)}.</p>" if line else ""


def mark_line(evaluation: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return how long training took to reach the paper's upper bound at 10; "" if not reached.

    It uses the validation figures of the rounds, else the final figure after the whole training.
    It is also "" if the paper prints no upper bound for the data set.
    """
    printed = PRINTED_HITS.get(evaluation["data"], {}).get(_UPPER_BOUND)
    if printed is None or not is_papers_protocol(evaluation):
        return ""
    goal, spent = printed["10"], 0.0
    for line in rounds:
        spent += line["seconds"]
        found = line.get("validation", {}).get("10")
        if found is not None and found >= goal:
            return (
                f"Hits@10 {goal}, the paper's upper bound, was reached on the validation people"
                f" after {spent:.1f} s of training (round {line['round'] + 1})"
            )
    final = evaluation.get("hits", {}).get("10")
    if rounds and final is not None and final >= goal:
        return (
            f"Hits@10 {goal}, the paper's upper bound, was reached on the test people with the"
            f" {spent:.1f} s of the whole training"
        )
    return ""


def kept_line(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return that an earlier state than the last one was kept, and why; "" if it was the last."""
    looks = [line for line in rounds if "best" in line]
    if not looks or looks[-1]["best"]:
        return ""
    best, last = [line for line in looks if line["best"]][-1], looks[-1]
    before, after = (f"{line['validation']['20']:.4f}" for line in (best, last))
    end = "where training stopped early" if last.get("stopped") else "at the end"
    return (
        f"The state after round {best['round'] + 1:,} was kept: Hits@20 on the validation people"
        f" was {before} there and {after} after round {last['round'] + 1:,}, {end}"
    )


def _mark(evaluation: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    line = mark_line(evaluation, rounds)
    return f"<p>{html_text(line)}.</p>" if line else ""


def _attacked(found: Mapping[str, Any]) -> str:
    said = "".join(f"<li>{html_text(line)}.</li>" for line in lines(found))
    return f"<h2>Attacked and audited</h2><ul>{said}</ul>{ATTACKED_NOTE}" if said else ""


ATTACKED_NOTE = (
    '<p class="note">An attack that fails shows only that this attack failed, and a lower bound'
    " below the ledger is no proof of privacy.</p>"
)


def _curves(rounds: Sequence[Mapping[str, Any]]) -> str:
    figures = [(line["round"] + 1, line) for line in rounds]
    validated = [
        (round_, found["validation"])
        for round_, found in figures
        if None not in found.get("validation", {"5": None}).values()
    ]
    parts = []
    if validated:
        looks = {f"Hits@{k}": looks_in(rounds, k) for k in reversed(KS)}
        chart = validation_html(looks, y_label="Hits@k after adaptation")
        at, hits = validated[-1]
        last = ", ".join(f"@{k} {figure(hits[k])}" for k in KS)
        parts.append("<h2>Quality on the validation people</h2>")
        parts.append(chart + note(f"After round {at}: Hits {last}."))
        if kept := kept_line(rounds):
            parts.append(f"<p>{html_text(kept)}.</p>")
    step = max(1, len(rounds) // 400)
    losses: dict[str, list[tuple[float, float]]] = {}
    for line in rounds[::step]:
        if line["loss"] is not None:
            losses.setdefault(line["stage"], []).append((line["round"] + 1, line["loss"]))
    chart = line_chart(losses, x_label="rounds", y_label="mean local loss")
    if chart:
        parts += ["<h2>Loss on the devices</h2>", chart]
        parts.append(note("Simulation only: computed from raw client data, which no server sees."))
    return "".join(parts)
