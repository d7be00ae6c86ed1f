"""The page of runs side by side."""

import re
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from privrec.runs.compare import Comparison, Line, columns, table_title
from privrec.runs.documents import Evaluation, NewOnly, RoundFigures
from privrec.runs.figures import without_advice
from privrec.show.page import Cell, Table, html_link, render
from privrec.show.promise import statement_of
from privrec.show.report import Row, are_same, hits_table, looks_in, validation_chart

Settings = Mapping[str, Mapping[str, object]]
"""The settings of each run, by the name of the run."""
_K = 20
_OPTIONAL = ("epsilon", "noise_multiplier")
"""Settings that a run with noise may lack. If only some runs have one of them, it differs."""


def render_comparison(
    compared: Comparison,
    *,
    rounds: Mapping[str, Sequence[RoundFigures]] | None = None,
    reports: Mapping[str, str] | None = None,
) -> str:
    """Return the page that shows runs side by side, with one part for each table.

    `rounds` has the figures of the rounds, and `reports` the address of the report, by run.
    """
    known, parts = reports or {}, []
    for data, lines in compared.tables.items():
        mine = {name: row for name, row in compared.rows.items() if table_title(row) == data}
        looks = {name: looks_in((rounds or {}).get(name, []), _K) for name in mine}
        recipes = {name: row.evaluation.recipe for name, row in mine.items()}
        parts.append(
            {
                "data": data,
                "hits": _hits(data, lines, known),
                "said": [one.sentence() for one in compared.against[data]],
                "warnings": [
                    f"{name}: {line}"
                    for name, row in mine.items()
                    for line in without_advice(row.evaluation.warnings)
                ],
                "new_items": _new_items({name: row.evaluation for name, row in mine.items()}),
                "curves": validation_chart(
                    looks, y_label=f"Hits@{_K} of validation people", kinds=recipes
                ),
                "settings": _differing({name: row.settings for name, row in mine.items()}),
            }
        )
    promises = [
        (_linked(name, known), statement_of(evaluation.privacy))
        for name, evaluation in compared.evaluations.items()
    ]
    return render("comparison.html", title="Runs side by side", parts=parts, promises=promises)


def _hits(data: str, lines: Sequence[Line], reports: Mapping[str, str]) -> Table:
    """Return the table of some lines, without empty columns."""
    head = columns()
    rows = [[_linked(line.name, reports), *map(_unbroken, line.cells()[1:])] for line in lines]
    kept = [n for n in range(len(head)) if any(row[n] for row in rows)]
    return Table(
        head=[head[n] for n in kept],
        rows=[[row[n] for n in kept] for row in rows],
        kinds=[line.kind for line in lines],
        name=f"Hits@k on {data}",
        look="wide words",
    )


def _unbroken(text: str) -> Cell:
    """Return a cell as HTML, without a line break inside "δ = 1e-06"."""
    escaped = str(escape(text))
    return Markup(re.sub(r"δ = \S+", r'<span class="one">\g<0></span>', escaped))  # noqa: S704


def _linked(name: str, reports: Mapping[str, str]) -> Cell:
    return html_link(name, reports[name]) if name in reports else name


def _new_items(evaluations: Mapping[str, Evaluation]) -> Table | None:
    """Return the table over items that are new to a person; None if it equals the main table."""
    ours = {name: one.new_only for name, one in evaluations.items() if one.new_only is not None}
    if all(are_same(new.hits, evaluations[name].hits) for name, new in ours.items()):
        return None
    others: dict[str, NewOnly] = {}
    recipes = {run.recipe for run in evaluations.values()}
    for name, run in evaluations.items():
        for other, figures in run.references.items():
            if other not in recipes and figures.new_only is not None:
                called = f"{other} (seed {run.seed})"
                if others.get(called, figures.new_only).hits != figures.new_only.hits:
                    # Another run of the same seed tested other people or items.
                    called = f"{other} (beside {name})"
                others.setdefault(called, figures.new_only)
    rows: list[Row] = [(name, new.hits, "ours") for name, new in ours.items()]
    rows += [(name, new.hits, "reference") for name, new in others.items()]
    return hits_table(rows, {name: new.interval for name, new in {**ours, **others}.items()})


def _differing(settings: Settings) -> Table | None:
    """Return a table of the settings that differ between runs; None if there are none."""
    keys = dict.fromkeys(key for one in settings.values() for key in one)
    values = {key: [str(one[key]) for one in settings.values() if key in one] for key in keys}
    rows = [
        [key, *(str(one.get(key, "-")) for one in settings.values())]
        for key, known in values.items()
        if len(set(known)) > 1 or (key in _OPTIONAL and len(known) < len(settings))
    ]
    name = "Settings that differ"
    return (
        Table(head=["", *settings], rows=rows, name=name, look="wide text short") if rows else None
    )
