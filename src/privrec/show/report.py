"""The HTML report of a run: one file, no network, no script."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from privrec.data.text import safe_text
from privrec.privacy.paper import PRINTED_HITS
from privrec.show.attacked import lines
from privrec.show.charts import line_chart

KS = ("5", "10", "20", "30")


def html_text(text: str) -> str:
    """Return text from data as HTML."""
    return html.escape(safe_text(text))


_UPPER_BOUND = "NCF, centralised"
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;text-align:right;
border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}tr.ours{font-weight:600;
background:#eef4fb}tr.paper{color:#666}svg{width:100%;height:auto;max-width:44rem}
.privacy{border-left:4px solid #b2182b;padding:.3rem 1rem;background:#fbf3f3}
.privacy.noised{border-color:#2166ac;background:#f2f6fb}
table.wide{font-size:.8em}.wide td:first-child{white-space:nowrap}.wide th:last-child,
.wide td:last-child{text-align:left}
details{margin:1rem 0}h1,h2{line-height:1.2}code{font-size:.9em}.note{color:#666;font-size:.9em}
"""

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


def _protocol(evaluation: Mapping[str, Any]) -> tuple[str, str]:
    """Return the protocol and the candidates; the paper's where an older file names none."""
    return evaluation.get("protocol", "halves"), evaluation.get("candidates", "unseen")


def is_papers_protocol(evaluation: Mapping[str, Any]) -> bool:
    """Return whether figures were found as the paper found its own."""
    return _protocol(evaluation) == ("halves", "unseen")


def _printed(evaluation: Mapping[str, Any]) -> list[Row]:
    return paper_rows(evaluation["data"]) if is_papers_protocol(evaluation) else []


def protocol_words(evaluation: Mapping[str, Any]) -> str:
    """Return how people were tested, for a title; "" where it was the paper's way."""
    name, candidates = _protocol(evaluation)
    return "" if is_papers_protocol(evaluation) else f", {name} among {candidates} items"


def paper_rows(data: str) -> list[Row]:
    """Return the figures printed in the paper for a data set."""
    return [(f"{name} (paper)", hits, "paper") for name, hits in PRINTED_HITS.get(data, {}).items()]


_TESTED = {
    "halves": "{:,} others who never took part",
    "leave-last": "the last like of {:,} people, which nobody trained on",
    "files": "the test file's likes of {:,} people, which nobody trained on",
}


def render_report(
    evaluation: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    *,
    attacked: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of one run; `attacked` is the summary of attacks and audits on it."""
    users = evaluation["users"]
    title = f"{evaluation['recipe']} on {evaluation['data']}, seed {evaluation['seed']}"
    parts = [
        f"<h1>{html_text(title)}</h1>",
        (
            f"<p>Trained by {users['train']:,} people, tested on"
            f" {_TESTED[_protocol(evaluation)[0]].format(users['test'])}"
            f" ({users['skipped']:,} skipped: too few likes to test).</p>"
        ),
        statement_html(evaluation["privacy"]),
        RAW_NOTE,
        f"<h2>Hits@k on the test people{html_text(protocol_words(evaluation))}</h2>",
        hits_table(table_rows(evaluation), intervals_of(evaluation)),
        *(
            f'<p class="note">{html_text(line)}.</p>'
            for line in (sample_line(evaluation), *left_out_lines(evaluation))
            if line
        ),
        (
            '<p class="note">References are fitted and tested in the same run. Rows marked'
            " (paper) are printed figures from another split.</p>"
        ),
        _new_only(evaluation),
        _few_items(evaluation),
        _mark(evaluation, rounds),
        _attacked(attacked or {}),
        _curves(evaluation, rounds),
        "<details><summary>Settings</summary><table>",
        *(
            f"<tr><td>{html_text(key)}</td><td>{html_text(str(value))}</td></tr>"
            for key, value in settings.items()
        ),
        "</table></details>",
    ]
    return page(title, parts)


def statement_html(privacy: Mapping[str, Any], name: str = "") -> str:
    """Return the privacy statement as a paragraph; `name` is HTML before it."""
    kind = "privacy" if privacy.get("epsilon") is None else "privacy noised"
    return f'<p class="{kind}">{name}{html_text(privacy["statement"])}</p>'


RAW_NOTE = (
    '<p class="note">This page is computed from raw data of the people tested and, for the'
    " references, of those who trained. No guarantee covers it: it is for the holder of the data,"
    " and not for release.</p>"
)


def figure(value: float | None) -> str:
    """Return a figure as text; a dash if nothing was tested."""
    return "-" if value is None else f"{value:.3f}"


Intervals = Mapping[str, Mapping[str, Sequence[float]]]
"""For each row of a table, by name, the ends of an interval by k as text."""


def intervals_of(evaluation: Mapping[str, Any]) -> Intervals:
    """Return the intervals of Hits@k of each row; older files have them for samples alone."""
    rows = {**evaluation["references"], evaluation["recipe"]: evaluation}
    return {name: row["interval"] for name, row in rows.items() if "interval" in row}


def figure_between(value: float | None, ends: Sequence[float] | None) -> str:
    """Return a figure as text, with the ends of its interval if it has one."""
    return figure(value) if ends is None else f"{figure(value)} ({ends[0]:.3f}–{ends[1]:.3f})"


def half_text(ends: Sequence[float] | None) -> str:
    """Return half of the length of an interval as text; "" if there is none."""
    return "" if ends is None else f"{(ends[1] - ends[0]) / 2:.3f}"


def hits_table(rows: Sequence[Row], intervals: Intervals | None = None) -> str:
    """Return an HTML table of Hits@k."""
    known = intervals or {}
    head = "".join(f"<th>@{k}</th>" for k in KS)
    body = "".join(
        f'<tr class="{kind}"><td>{html_text(name)}</td>'
        + "".join(f"<td>{figure_between(hits[k], known.get(name, {}).get(k))}</td>" for k in KS)
        + "</tr>"
        for name, hits, kind in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


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
    new = evaluation["new_only"]["hits"]
    if all(new[k] is None or abs(new[k] - evaluation["hits"][k]) < 1e-12 for k in KS):
        return ""
    rows: list[Row] = [(evaluation["recipe"], new, "ours")]
    rows += [
        (name, figures["new_only"]["hits"], "reference")
        for name, figures in evaluation["references"].items()
        if name != evaluation["recipe"]
    ]
    return "<h2>Only items that are new to the person</h2>" + hits_table(rows)


def few_items_line(evaluation: Mapping[str, Any]) -> str:
    """Return what adaptation does for people with few items, in one line; "" if nobody has few."""
    few = evaluation.get("few_items") or {"people": 0}
    if not few["people"] or few["hits"]["20"] is None:
        return ""
    who = f"{few['people']:,} people with fewer than {few['fewer_than']} items on their device"
    line = f"{who}: Hits@20 {figure(few['hits']['20'])}"
    without = few["without_adaptation"]
    if without is None:
        return f"{line}; this recipe does not adapt"
    return f"{line} with adaptation, {figure(without['20'])} without"


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


def _curves(evaluation: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    figures = [(line["round"] + 1, line) for line in rounds]
    validated = [
        (round_, found["validation"])
        for round_, found in figures
        if None not in found.get("validation", {"5": None}).values()
    ]
    parts = []
    if validated:
        series = {
            f"Hits@{k}": [(round_, hits[k]) for round_, hits in validated] for k in reversed(KS)
        }
        parts.append("<h2>Quality on the validation people</h2>")
        parts.append(line_chart(series, x_label="rounds", y_label="Hits@k after adaptation"))
    step = max(1, len(rounds) // 400)
    losses: dict[str, list[tuple[float, float]]] = {}
    for line in rounds[::step]:
        if line["loss"] is not None:
            losses.setdefault(line["stage"], []).append((line["round"] + 1, line["loss"]))
    if losses:
        parts.append("<h2>Loss on the devices</h2>")
        parts.append(line_chart(losses, x_label="rounds", y_label="mean local loss"))
        parts.append(
            '<p class="note">Simulation only: computed from raw client data, which no server'
            " sees.</p>"
        )
    return "".join(parts)


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole HTML document; `title` is plain text, `parts` are HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html_text(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )
