"""The HTML report of a run, in one file. Older evaluations lack some of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from privrec.data.text import data_title
from privrec.evaluation.intervals import Difference
from privrec.evaluation.metrics import KS
from privrec.runs.documents import Attacked, Evaluation, Example, Group, Privacy, RoundFigures
from privrec.runs.figures import (
    around,
    digits,
    figure,
    figure_and_arm,
    printed_hits,
    protocol_words,
    signed,
    signed_with_arm,
)
from privrec.runs.ledger import LedgerLine
from privrec.show.charts import line_chart
from privrec.show.page import Cell, Link, Table, part, render, with_ends
from privrec.show.promise import promise_part

_K = 20
Row = tuple[str, Mapping[int, float | None], str]
"""A name, Hits@k by k, and a kind: "ours", "reference" or "paper"."""
Intervals = Mapping[str, Mapping[int, Sequence[float]]]
"""The ends of the interval by k, by the name of a row."""
Looks = tuple[list[tuple[float, float]], dict[float, tuple[float, float]]]
"""Points (rounds played, Hits@k), and the ends of their intervals by rounds played."""
_BEYOND = {"coverage": "coverage", "novelty": "novelty", "popular_hits": "popular hits"}
_BEYOND_NAME = f"The first {_K} of each list"
_BY_DEFINITION = ("popularity", "popular_hits")
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
    """What a report shows besides figures; all of it is optional.

    `summary` says what the recipe is. `examples` are people of a public data set. `attacked`
    summarizes attacks and audits. `links` lead to other pages of the run.
    """

    summary: str = ""
    ledger: Sequence[LedgerLine] = ()
    examples: Sequence[Example] = ()
    attacked: Attacked | None = None
    links: Sequence[Link] = ()


def render_report(
    evaluation: Evaluation,
    rounds: Sequence[RoundFigures],
    settings: Mapping[str, object],
    beside: Beside | None = None,
) -> str:
    """Return the report of an evaluated run."""
    beside = beside or Beside()
    return render(
        "report.html",
        **_shared(evaluation.privacy, rounds, settings, beside),
        title=f"{evaluation.recipe} on {data_words(evaluation)}, seed {evaluation.seed}",
        lead=_lead(evaluation, beside),
        quality=_quality(evaluation, rounds),
        examples=beside.examples,
    )


def render_begun(
    title: str,
    privacy: Privacy,
    rounds: Sequence[RoundFigures],
    settings: Mapping[str, object],
    *,
    next_step: str,
    beside: Beside,
) -> str:
    """Return the report of a run that was not evaluated; `next_step` is the command to do so."""
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
    privacy: Privacy, rounds: Sequence[RoundFigures], settings: Mapping[str, object], beside: Beside
) -> dict[str, object]:
    """Return the values for the template that every report has."""
    rows = [(key, str(value)) for key, value in settings.items()]
    return {
        "links": beside.links,
        "promise": promise_part(privacy, beside.ledger),
        "attacked": beside.attacked.sentences() if beside.attacked else [],
        "validation": _validation(rounds),
        "loss": loss_chart(rounds),
        "settings": Table(head=(), rows=rows, name="Settings", look="text short"),
    }


def data_words(evaluation: Evaluation) -> str:
    """Return the name of the data set, and that of its folder if it differs."""
    return data_title(evaluation.data_name or evaluation.data, evaluation.data)


def _quality(evaluation: Evaluation, rounds: Sequence[RoundFigures]) -> dict[str, object]:
    """Return the values for the template that come from the people tested."""
    recipe, new = evaluation.recipe, _new_only(evaluation)
    new_differences = evaluation.new_only.differences if evaluation.new_only else {}
    return {
        "recipe": recipe,
        "warnings": evaluation.warnings,
        "protocol": protocol_words(evaluation.protocol, evaluation.candidates),
        "hits": hits_table(table_rows(evaluation), intervals_of(evaluation)),
        "notes": left_out_lines(evaluation),
        "differences": differences_table(evaluation.differences, recipe),
        "new_hits": new,
        "new_differences": new and differences_table(new_differences, recipe),
        "by_items": _by_items(evaluation),
        "few_items": few_items_line(evaluation),
        "beyond": beyond_table(evaluation),
    }


def difference_words(difference: Difference) -> str:
    """Return a difference to a reference in words, by its interval.

    >>> difference_words(Difference(by=0.0101, low=0.007, high=0.013))
    'better by 0.010 ± 0.003'
    >>> difference_words(Difference(by=-0.02, low=-0.03, high=-0.01))
    'worse by 0.020 ± 0.010'
    >>> difference_words(Difference(by=0.001, low=-0.002, high=0.004))
    'no clear difference: 0.001 ± 0.003'
    """
    return " ".join(_difference(difference))


def _difference(difference: Difference) -> tuple[str, str]:
    """Return the words before a difference, and its figure."""
    by, ends = difference.by, around(difference)
    if difference.low <= 0 <= difference.high:
        return "no clear difference:", f"{signed(by).removeprefix('+')}{ends}"
    return ("better by" if difference.low > 0 else "worse by"), f"{digits(abs(by))}{ends}"


def differences_table(
    differences: Mapping[str, Mapping[int, Difference]], name: str
) -> Table | None:
    """Return a table of the run's differences to the references; None if they are not known."""
    # A reference that was trained as a run is not compared with itself.
    others = {other: by_k for other, by_k in differences.items() if other != name}
    ks = list(dict.fromkeys(k for by_k in others.values() for k in by_k))
    if not ks:
        return None
    rows = [[other, *(_difference_cell(by.get(k)) for k in ks)] for other, by in others.items()]
    return Table(head=[f"{name} against", *(f"@{k}" for k in ks)], rows=rows, name="Differences")


def _difference_cell(difference: Difference | None) -> Cell:
    if difference is None:
        return "-"
    return Markup('<span class="ends">{}</span> {}').format(*_difference(difference))


def looks_in(rounds: Sequence[RoundFigures], k: int) -> Looks:
    """Return Hits@k of the validation people, with intervals where they are known."""
    points, ends = [], {}
    for line in rounds:
        hits = line.validation.get(str(k))
        if hits is None:
            continue
        at = float(line.round + 1)
        points.append((at, hits))
        if both := line.validation_interval.get(str(k)):
            ends[at] = (both[0], both[1])
    return points, ends


def validation_chart(
    looks: Mapping[str, Looks], *, y_label: str, kinds: Mapping[str, str] | None = None
) -> Markup:
    """Return the chart of Hits@k of validation people with intervals; "" without curves.

    The y axis starts at 0; otherwise differences within the intervals would look large.
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


def _by_items(evaluation: Evaluation) -> dict[str, object] | None:
    """Return a chart and a table of Hits@20 by items on the device; None if not known."""
    groups = [group for group in evaluation.by_items if group.hits[_K] is not None]
    if not groups:
        return None
    ours = evaluation.recipe
    others = [name for name in groups[0].references if name != ours]
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in (ours, *others)}
    bars, rows = {}, []
    for n, group in enumerate(groups):
        ends = group.interval.get(_K)
        hits_of = {**{name: hits[_K] for name, hits in group.references.items()}}
        hits_of[ours] = group.hits[_K]
        for name, points in series.items():
            if (hits := hits_of.get(name)) is not None:
                points.append((float(n), hits))
        if ends:
            bars[float(n)] = ends
        cells = (figure(hits_of.get(name)) for name in others)
        rows.append([_span(group), f"{group.people:,}", with_ends(hits_of[ours], ends), *cells])
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


def _span(group: Group) -> str:
    if group.most is None:
        return f"{group.least}+"
    return str(group.least) if group.least == group.most else f"{group.least}–{group.most}"


def beyond_table(evaluation: Evaluation) -> Table | None:
    """Return a table of the differences to references, coverage, novelty and popular hits.

    None for older files, which lack these figures.
    """
    rows = []
    for name, one in evaluation.recommenders.items():
        if not one.beyond:
            continue
        by = None if one is evaluation else evaluation.differences.get(name, {}).get(_K)
        # By definition, popularity has all popular hits, so an interval means nothing.
        known = [what for what in one.beyond_interval if (name, what) != _BY_DEFINITION]
        ends = {what: one.beyond_interval[what].get(_K) for what in known}
        cells = [
            figure_and_arm(one.beyond.get(what, {}).get(_K), ends.get(what)) for what in _BEYOND
        ]
        rows.append([name, signed_with_arm(by), *cells])
    head = ("", "run against it", *_BEYOND.values())
    kinds = ["ours"] if evaluation.beyond else []
    return Table(head=head, rows=rows, kinds=kinds, name=_BEYOND_NAME) if rows else None


def table_rows(evaluation: Evaluation) -> list[Row]:
    """Return the rows of a run's table: the run, its references, and the paper's systems."""
    rows: list[Row] = [
        (name, one.hits, "ours" if name == evaluation.recipe else "reference")
        for name, one in evaluation.recommenders.items()
    ]
    printed = printed_hits(evaluation.data, evaluation.protocol, evaluation.candidates)
    return rows + [(name, hits, "paper") for name, hits in printed.items()]


def _lead(evaluation: Evaluation, beside: Beside) -> str:
    """Return three sentences: what the recipe is, who was tested, and Hits@20."""
    users = evaluation.users
    train = _trained(beside.ledger) or users.train
    trained = "Tested" if train is None else f"Trained by {train:,} people, tested"
    tested = _TESTED.get(evaluation.protocol, "{:,} people").format(users.test)
    among = _AMONG.get(evaluation.candidates, "others")
    sentences = [
        _sentence(beside.summary),
        f"{trained} on {tested} ({users.skipped:,} skipped: too few likes to test).",
        (
            f"Of a person's hidden likes, {100 * evaluation.hits[_K]:.1f} % are among the first 20"
            f" when each is ranked with {among}{_beside_popular(evaluation)}."
        ),
    ]
    return " ".join(filter(None, sentences))


def _trained(ledger: Sequence[LedgerLine]) -> int | None:
    """Return the number of people who trained, from a ledger without noise; else None.

    It may be larger than that of the split, because central fits also use the validation people.
    """
    if not ledger or any(line.mechanism != "none" for line in ledger):
        return None
    return max(line.sampling.users for line in ledger)


def _beside_popular(evaluation: Evaluation) -> str:
    popular = evaluation.references.get("popularity")
    if popular is None or evaluation.recipe == "popularity":
        return ""
    by = evaluation.differences.get("popularity", {}).get(_K)
    sure = f": {difference_words(by)}" if by else ""
    return f"; the most popular items reach {100 * popular.hits[_K]:.1f} %{sure}"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def intervals_of(evaluation: Evaluation) -> Intervals:
    """Return the intervals of Hits@k by row, as far as they are known."""
    return {name: one.interval for name, one in evaluation.recommenders.items() if one.interval}


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


def left_out_lines(evaluation: Evaluation) -> list[str]:
    """Return a line for each reference that was left out, with the reason."""
    left_out = evaluation.references_left_out.items()
    return [f"the reference {name} was left out: it {why}" for name, why in left_out]


def _new_only(evaluation: Evaluation) -> Table | None:
    """Return the table over items that are new to the person; None if it equals the main table."""
    if evaluation.new_only is None or are_same(evaluation.new_only.hits, evaluation.hits):
        return None
    known = {n: one.new_only for n, one in evaluation.recommenders.items() if one.new_only}
    rows: list[Row] = [
        (name, new.hits, "ours" if name == evaluation.recipe else "reference")
        for name, new in known.items()
    ]
    return hits_table(rows, {name: new.interval for name, new in known.items()})


def are_same(some: Mapping[int, float | None], others: Mapping[int, float]) -> bool:
    """Return whether the known figures are the same."""
    known = [(value, others[k]) for k, value in some.items() if value is not None]
    return all(abs(value - other) < 1e-12 for value, other in known)


def few_items_line(evaluation: Evaluation) -> str:
    """Return a line on adaptation for people with few items; "" if there are no such people."""
    few = evaluation.few_items
    if few is None or not few.people or few.hits[_K] is None:
        return ""
    who = f"{few.people:,} people with fewer than {few.fewer_than} items on their device"
    if few.people == 1:
        who = who.replace("people", "person", 1)
    line = f"{who}: Hits@20 {figure_and_arm(few.hits[_K], few.interval.get(_K))}"
    if few.without_adaptation is None:
        return f"{line}; this recipe does not adapt"
    without = figure_and_arm(few.without_adaptation[_K], few.interval_without.get(_K))
    return f"{line} with adaptation, {without} without"


def kept_line(rounds: Sequence[RoundFigures]) -> str:
    """Return a sentence that says why an earlier state was kept; "" if it was the last state."""
    looks = [line for line in rounds if line.best is not None]
    if not looks or looks[-1].best:
        return ""
    best, last = [line for line in looks if line.best][-1], looks[-1]
    before, after = (f"{line.validation['20']:.4f}" for line in (best, last))
    end = "where training stopped early" if last.stopped else "at the end"
    return (
        f"The state after round {best.round + 1:,} was kept: Hits@20 on the validation people"
        f" was {before} there and {after} after round {last.round + 1:,}, {end}"
    )


def _validation(rounds: Sequence[RoundFigures]) -> dict[str, object] | None:
    """Return the chart and the last figures of the validation people; None without figures."""
    known = [line for line in rounds if None not in (line.validation or {"": None}).values()]
    if not known:
        return None
    last = known[-1]
    return {
        "chart": validation_curves(rounds),
        "last_round": last.round + 1,
        "last": ", ".join(f"@{k} {figure(last.validation[str(k)])}" for k in KS),
        "kept": kept_line(rounds),
    }


def validation_curves(rounds: Sequence[RoundFigures]) -> Markup:
    """Return the chart of Hits@k of the validation people for each k; "" without figures."""
    looks = {f"Hits@{k}": looks_in(rounds, k) for k in reversed(KS)}
    return validation_chart(looks, y_label="Hits@k after adaptation")


def loss_chart(rounds: Sequence[RoundFigures]) -> Markup:
    """Return the chart of the loss, with a curve for each stage; "" without losses."""
    losses: dict[str, list[tuple[float, float]]] = {}
    for line in rounds:
        if line.loss is not None:
            losses.setdefault(line.stage, []).append((line.round + 1, line.loss))
    return line_chart(losses, x_label="rounds", y_label="mean local loss")
