"""The HTML report of a run: one file, no network. Older evaluations lack some of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from privrec.privacy.paper import PRINTED_HITS
from privrec.runs.figures import (
    KS,
    Document,
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
from privrec.show.page import Cell, Link, Table, part, render, with_ends
from privrec.show.promise import promise_part

_K = "20"
_UPPER_BOUND = "NCF, centralised"
Row = tuple[str, Mapping[str, float | None], str]
"""(name, Hits@k by k as text, kind: "ours", "reference" or "paper")"""
Intervals = Mapping[str, Mapping[str, Sequence[float]]]
"""For each row of a table, by name, the ends of an interval by k as text."""
Looks = tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]
"""Points (rounds played, Hits@k), and the ends of the interval by the x of a point."""
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
    ledger: Sequence[Document] = ()
    examples: Sequence[Document] = ()
    attacked: Document = field(default_factory=dict)
    links: Sequence[Link] = ()


def render_report(
    evaluation: Document,
    rounds: Sequence[Document],
    settings: Document,
    beside: Beside | None = None,
) -> str:
    """Return the page of one run that was evaluated."""
    beside = beside or Beside()
    return render(
        "report.html",
        **_shared(evaluation["privacy"], rounds, settings, beside),
        title=f"{evaluation['recipe']} on {data_words(evaluation)}, seed {evaluation['seed']}",
        lead=_lead(evaluation, beside),
        quality=_quality(evaluation, rounds),
        examples=beside.examples,
    )


def render_begun(
    title: str,
    privacy: Document,
    rounds: Sequence[Document],
    settings: Document,
    *,
    next_step: str,
    beside: Beside,
) -> str:
    """Return the page of a run that was not evaluated; `next_step` is the command that does it."""
    return render(
        "report.html",
        **_shared(privacy, rounds, settings, beside),
        title=title,
        lead=_sentence(beside.summary),
        quality=None,
        next_step=next_step,
        examples=(),
    )


def _shared(
    privacy: Document, rounds: Sequence[Document], settings: Document, beside: Beside
) -> dict[str, object]:
    """Return what the report of every run shows."""
    rows = [(key, str(value)) for key, value in settings.items()]
    return {
        "links": beside.links,
        "promise": promise_part(privacy, beside.ledger),
        "attacked": lines(beside.attacked),
        "validation": _validation(rounds),
        "loss": _loss_chart(rounds),
        "settings": Table(head=(), rows=rows, name="Settings", look="text short"),
    }


def _quality(evaluation: Document, rounds: Sequence[Document]) -> dict[str, object]:
    """Return what a report says of the people tested."""
    recipe, new = str(evaluation["recipe"]), _new_only(evaluation)
    sampled = sample_line(evaluation)
    return {
        "recipe": recipe,
        "warnings": evaluation.get("warnings", []),
        "protocol": protocol_words(evaluation),
        "hits": hits_table(table_rows(evaluation), intervals_of(evaluation)),
        "notes": [*([sampled] if sampled else []), *left_out_lines(evaluation)],
        "differences": differences_table(evaluation.get("differences", {}), recipe),
        "new_hits": new,
        "new_differences": new
        and differences_table(evaluation["new_only"].get("differences", {}), recipe),
        "mark": mark_line(evaluation, rounds),
        "by_items": _by_items(evaluation),
        "few_items": few_items_line(evaluation),
        "beyond": _beyond_table(evaluation),
    }


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


def differences_table(differences: Mapping[str, Document], name: str) -> Table | None:
    """Return by how much a run is better than each reference; None if that is not known."""
    # A reference that was trained as a run is not compared with itself.
    others = {other: found for other, found in differences.items() if other != name}
    ks = list(dict.fromkeys(k for found in others.values() for k in found))
    if not ks:
        return None
    rows = [[other, *(_difference_cell(by.get(k)) for k in ks)] for other, by in others.items()]
    return Table(head=[f"{name} against", *(f"@{k}" for k in ks)], rows=rows, name="Differences")


def _difference_cell(found: Document | None) -> Cell:
    if not found or None in found.values():
        return "-"
    return Markup('<span class="ends">{}</span> {}').format(*_difference(found))


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


def validation_chart(
    looks: Mapping[str, Looks], *, y_label: str, kinds: Mapping[str, str] | None = None
) -> Markup:
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
    return part("validation.html", chart=chart, has_bars=any(bars.values())) if chart else chart


def _by_items(evaluation: Document) -> dict[str, object] | None:
    """Return quality against the number of items on a person's device; None if not known."""
    groups = [one for one in evaluation.get("by_items", []) if one["hits"].get(_K) is not None]
    if not groups:
        return None
    ours = str(evaluation["recipe"])
    others = [name for name in groups[0].get("references", {}) if name != ours]
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in (ours, *others)}
    bars, rows = {}, []
    for n, group in enumerate(groups):
        ends = group.get("interval", {}).get(_K)
        found = {name: hits.get(_K) for name, hits in group.get("references", {}).items()}
        found[ours] = group["hits"][_K]
        for name, points in series.items():
            if (hits := found.get(name)) is not None:
                points.append((float(n), float(hits)))
        if ends:
            bars[float(n)] = (float(ends[0]), float(ends[1]))
        cells = (figure(found.get(name)) for name in others)
        rows.append([_span(group), f"{group['people']:,}", with_ends(found[ours], ends), *cells])
    chart = line_chart(
        series,
        x_label="items on the device",
        y_label=f"Hits@{_K}",
        x_names={float(n): _span(group) for n, group in enumerate(groups)},
        bars={ours: bars},
        from_zero=True,
    )
    head = ("items on the device", "people", ours, *others)
    name = "Quality by the number of items"
    return {"chart": chart, "table": Table(head=head, rows=rows, name=name, look="short")}


def _span(group: Document) -> str:
    low, high = group["from"], group.get("to")
    if high is None:
        return f"{low}+"
    return str(low) if low == high else f"{low}–{high}"


def _beyond_table(evaluation: Document) -> Table | None:
    """Return coverage, novelty and what popularity finds too; None if that is not known."""
    references = {name: one.get("beyond") for name, one in evaluation["references"].items()}
    found = {str(evaluation["recipe"]): evaluation.get("beyond"), **references}
    columns = (("coverage", 3), ("novelty", 2), ("popular_hits", 3))
    rows = [
        [name, *(figure(beyond.get(what, {}).get(_K), decimals) for what, decimals in columns)]
        for name, beyond in found.items()
        if beyond
    ]
    head = ("", "coverage", "novelty, bits", "hits that popularity has too")
    kinds = ["ours"] if evaluation.get("beyond") else []
    return Table(head=head, rows=rows, kinds=kinds, name="Beyond hits") if rows else None


def table_rows(evaluation: Document) -> list[Row]:
    """Return the rows of a run's table: ours, the references of the same run, the paper's."""
    rows: list[Row] = [(evaluation["recipe"], evaluation["hits"], "ours")]
    rows += [
        (name, figures["hits"], "reference")
        for name, figures in evaluation["references"].items()
        if name != evaluation["recipe"]
    ]
    return rows + _printed(evaluation)


def _printed(evaluation: Document) -> list[Row]:
    return paper_rows(evaluation["data"]) if is_papers_protocol(evaluation) else []


def paper_rows(data: str) -> list[Row]:
    """Return the figures printed in the paper for a data set."""
    return [(f"{name} (paper)", hits, "paper") for name, hits in PRINTED_HITS.get(data, {}).items()]


def _lead(evaluation: Document, beside: Beside) -> str:
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


def _trained(ledger: Sequence[Document]) -> dict[str, int]:
    """Return how many people trained, where the ledger has no noise: then it counts exactly.

    Recipes that fit in one go also fit the people who are kept for validation.
    """
    if not ledger or any(line["mechanism"] != "none" for line in ledger):
        return {}
    return {"train": max(line["sampling"]["users"] for line in ledger)}


def _beside_popular(evaluation: Document) -> str:
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


def intervals_of(evaluation: Document) -> Intervals:
    """Return the intervals of Hits@k of each row; older files have them for samples alone."""
    rows = {**evaluation["references"], evaluation["recipe"]: evaluation}
    return {name: row["interval"] for name, row in rows.items() if "interval" in row}


def hits_table(rows: Sequence[Row], intervals: Intervals | None = None) -> Table:
    """Return a table of Hits@k."""
    known = intervals or {}
    return Table(
        head=["", *(f"@{k}" for k in KS)],
        rows=[
            [name, *(with_ends(hits[k], known.get(name, {}).get(k)) for k in KS)]
            for name, hits, _ in rows
        ],
        kinds=[kind for _, _, kind in rows],
        name="Hits@k",
    )


def sample_line(evaluation: Document) -> str:
    """Return that only some of the test people were drawn; "" if all were tested."""
    drawn = evaluation.get("sampled")
    if drawn is None:
        return ""
    return f"A sample of {drawn['people']:,} of {drawn['of']:,} test people was drawn"


def left_out_lines(evaluation: Document) -> list[str]:
    """Return which references were left out, and why."""
    left_out = evaluation.get("references_left_out", {})
    return [f"the reference {name} was left out: it {why}" for name, why in left_out.items()]


def _new_only(evaluation: Document) -> Table | None:
    """Return the table over items that are new to the person; None if it equals the main table."""
    new = evaluation.get("new_only", {}).get("hits") or evaluation["hits"]
    if all(new[k] is None or abs(new[k] - evaluation["hits"][k]) < 1e-12 for k in KS):
        return None
    recipe = evaluation["recipe"]
    known = {recipe: evaluation} | {**evaluation["references"], recipe: evaluation}
    found = {name: one["new_only"] for name, one in known.items() if "new_only" in one}
    rows: list[Row] = [
        (name, one["hits"], "ours" if name == recipe else "reference")
        for name, one in found.items()
    ]
    ends = {name: one["interval"] for name, one in found.items() if "interval" in one}
    return hits_table(rows, ends)


def few_items_line(evaluation: Document) -> str:
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


def mark_line(evaluation: Document, rounds: Sequence[Document]) -> str:
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


def kept_line(rounds: Sequence[Document]) -> str:
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


def _validation(rounds: Sequence[Document]) -> dict[str, object] | None:
    """Return the curves of the validation people, and their last figures; None without any."""
    known = [line for line in rounds if None not in line.get("validation", {"": None}).values()]
    if not known:
        return None
    looks = {f"Hits@{k}": looks_in(rounds, k) for k in reversed(KS)}
    last = known[-1]
    return {
        "chart": validation_chart(looks, y_label="Hits@k after adaptation"),
        "last_round": last["round"] + 1,
        "last": ", ".join(f"@{k} {figure(last['validation'][k])}" for k in KS),
        "kept": kept_line(rounds),
    }


def _loss_chart(rounds: Sequence[Document]) -> Markup:
    losses: dict[str, list[tuple[float, float]]] = {}
    for line in rounds[:: max(1, len(rounds) // 400)]:
        if line["loss"] is not None:
            losses.setdefault(line["stage"], []).append((line["round"] + 1, line["loss"]))
    return line_chart(losses, x_label="rounds", y_label="mean local loss")
