"""The page of runs side by side."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from privrec.runs.compare import Evaluations, Line, any_attacked, columns, comparison, table_title
from privrec.runs.figures import KS, warned_of
from privrec.show.page import RAW_NOTE, html_link, html_table, html_text, note, page, table
from privrec.show.promise import statement_html
from privrec.show.report import (
    ATTACKED_NOTE,
    Row,
    boxes,
    hits_table,
    looks_in,
    validation_html,
)

Rounds = Mapping[str, Sequence[Mapping[str, Any]]]
_K = "20"
_LOOK = "wide words"
_OPTIONAL = ("epsilon", "noise_multiplier")
"""Settings that a run of any recipe with noise may lack: then they differ."""


def render_comparison(
    evaluations: Evaluations,
    settings: Evaluations,
    *,
    rounds: Rounds | None = None,
    reports: Mapping[str, str] | None = None,
    said: Mapping[str, Sequence[str]] | None = None,
    tables: Mapping[str, Sequence[Line]] | None = None,
) -> str:
    """Return the page that shows several runs side by side, one part for each data set.

    `rounds` are what each run's rounds did, `reports` the addresses of the runs' reports, `said`
    for each table the sentences about what is better than what, `tables` the lines of each, if
    they are known already.
    """
    parts = ["<h1>Runs side by side</h1>"]
    attacked = any_attacked(evaluations)
    head = columns(attacked=attacked)
    known = reports or {}
    for data, lines in (tables or comparison(evaluations, settings)).items():
        cells = [
            [_linked(line.name, known), *map(_cell, line.cells(attacked=attacked)[1:])]
            for line in lines
        ]
        kinds = [line.kind for line in lines]
        mine = {
            name: one
            for name, one in evaluations.items()
            if table_title(one, settings.get(name, {})) == data
        }
        parts += [
            f"<h2>{html_text(data)}</h2>",
            html_table(*_filled(head, cells), kinds=kinds, name=f"Hits@k on {data}", look=_LOOK),
            _listed((said or {}).get(data, ())),
            boxes([f"{name}: {line}" for name, one in mine.items() for line in warned_of(one)]),
            _new_items(mine),
            _curves(
                {name: (rounds or {}).get(name, []) for name in mine},
                {name: str(one["recipe"]) for name, one in mine.items()},
            ),
            _differing({name: settings[name] for name in mine if name in settings}),
        ]
    parts.append(
        note(
            "Bytes sent are those of one person of usual size in one round. Rows marked (paper)"
            " and the columns of the paper are printed figures from another split."
        )
    )
    if attacked:
        parts.append(ATTACKED_NOTE)
    parts.append("<h2>Privacy</h2>")
    for name, evaluation in evaluations.items():
        parts.append(statement_html(evaluation["privacy"], f"<b>{_linked(name, known)}</b>: "))
    parts.append(RAW_NOTE)
    return page("Runs side by side", parts)


def _cell(text: str) -> str:
    """Return a cell as HTML; a line does not end inside "δ = 1e-06"."""
    return re.sub(r"δ = \S+", r'<span class="one">\g<0></span>', html_text(text))


def _listed(sentences: Sequence[str]) -> str:
    lines = "".join(f"<li>{html_text(line)}</li>" for line in sentences)
    return f"<ul>{lines}</ul>" if lines else ""


def _filled(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that are empty in all rows."""
    kept = [n for n in range(len(head)) if any(row[n] for row in rows)]
    return [head[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _linked(name: str, reports: Mapping[str, str]) -> str:
    return html_link(name, reports[name]) if name in reports else html_text(name)


def _new_items(evaluations: Evaluations) -> str:
    """Return the table over items that are new to a person; "" if it says what the first says."""
    rows: list[Row] = []
    ends: dict[str, Mapping[str, Sequence[float]]] = {}
    others: dict[str, Mapping[str, Any]] = {}
    for name, one in evaluations.items():
        new = one.get("new_only", {})
        if "hits" in new:
            rows.append((name, new["hits"], "ours"))
            ends |= {name: new["interval"]} if "interval" in new else {}
        recipes = {run["recipe"] for run in evaluations.values()}
        for other, found in one["references"].items():
            if other not in recipes and "hits" in found.get("new_only", {}):
                called = f"{other} (seed {one['seed']})"
                if others.get(called, found["new_only"])["hits"] != found["new_only"]["hits"]:
                    # Other people or items were tested under the same seed.
                    called = f"{other} (beside {name})"
                others.setdefault(called, found["new_only"])
    same = all(
        hits[k] is None or abs(hits[k] - evaluations[name]["hits"][k]) < 1e-12
        for name, hits, _ in rows
        for k in KS
    )
    if same:
        return ""
    rows += [(other, found["hits"], "reference") for other, found in others.items()]
    ends |= {other: found["interval"] for other, found in others.items() if "interval" in found}
    return f"<h3>Only items that are new to the person</h3>{hits_table(rows, ends)}"


def _curves(rounds: Rounds, recipes: Mapping[str, str]) -> str:
    """Return the curves of the runs on their validation people, one over another."""
    looks = {name: looks_in(lines, _K) for name, lines in rounds.items()}
    chart = validation_html(looks, y_label=f"Hits@{_K} of validation people", kinds=recipes)
    return f"<h3>Quality on the validation people</h3>{chart}" if chart else ""


def _differing(settings: Evaluations) -> str:
    """Return a table of the settings that are not the same in all runs; "" if all are.

    Settings that have one value, but that not all recipes know, are folded up below it: there can
    be many of them, and they hide what was changed.
    """
    keys = dict.fromkeys(key for one in settings.values() for key in one)
    values = {key: [str(one[key]) for one in settings.values() if key in one] for key in keys}
    lacking = [key for key in keys if len(values[key]) < len(settings)]
    changed = {key for key in keys if len(set(values[key])) > 1}
    differing = [key for key in keys if key in changed or (key in _OPTIONAL and key in lacking)]
    lacking = [key for key in lacking if key not in differing]

    def shown(name: str, some: Sequence[str]) -> str:
        rows = [
            [key, *(str(one[key]) if key in one else "-" for one in settings.values())]
            for key in some
        ]
        return table(["", *settings], rows, name=name, look="wide text short")

    parts = []
    if differing:
        parts += ["<h3>Settings that differ</h3>", shown("Settings that differ", differing)]
    if lacking:
        name = "Settings that not all of these recipes have"
        parts.append(
            f"<details><summary>{name}: {len(lacking)}</summary>{shown(name, lacking)}</details>"
        )
    same = len(keys) - len(differing) - len(lacking)
    return "".join(parts) + note(f"{_count(same)} the same in all of these runs.") if parts else ""


def _count(same: int) -> str:
    return "1 other setting is" if same == 1 else f"{same} other settings are"
