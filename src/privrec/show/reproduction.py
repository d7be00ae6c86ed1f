"""The page and the pictures of a reproduction, and its tables in pages of documentation."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from privrec.errors import RunFolderError
from privrec.reproduce.experiments import SYSTEMS
from privrec.reproduce.mistakes import MISTAKES
from privrec.reproduce.results import NAMES, PAPER, Number, Result, table_of
from privrec.runs.folder import write_whole
from privrec.show.charts import line_chart
from privrec.show.page import Table, render

_QUICK = (
    "A quick run: made-up people and a few of MovieLens, small cohorts, few rounds. It shows that"
    " every part runs. Its figures say nothing about the paper."
)
_CURVES = 9
"""More curves than this cannot be told apart: then a chart has the rows that the paper has too."""
_KINDS = {
    **SYSTEMS,
    **{"PrivRec-SGD": "privrec-sgd", "DP-PrivRec": "dp-privrec"},
}
"""Which recipe a row is of, for its colour; what is printed has the same one, dashed."""


def write_page(out: Path) -> list[Path]:
    """Write the page of all results in a folder, and a picture of each panel; return the files."""
    results = read_results(out)
    written = [out / "reproduction.html"]
    write_whole(written[0], render_reproduction(results).encode())
    for one in results:
        for number, panel in enumerate(one.panels, start=1):
            if drawn := draw(one, panel, title=panel):
                written.append(out / f"{one.name}-{number}.svg")
                write_whole(written[-1], drawn.encode())
    return written


def read_results(folder: Path) -> list[Result]:
    """Return the results in a folder, in the order of the paper's tables and figures."""
    known = [Result.read(folder / f"{name}.json") for name in NAMES]
    return [one for one in known if one is not None]


def render_reproduction(results: Sequence[Result]) -> str:
    """Return the page: a section for each result, and what the paper gets wrong."""
    by_name = {one.name: one for one in results}
    return render(
        "reproduction.html",
        title="The paper reproduced",
        warnings=[_QUICK] if any(one.quick for one in results) else [],
        sections=[_section(one) for one in results],
        mistakes=[
            {
                "title": one.title,
                "why": one.why,
                "command": one.command,
                "evidence": one.evidence(by_name),
            }
            for one in MISTAKES
        ],
    )


def _section(result: Result) -> Mapping[str, object]:
    return {
        "name": result.name,
        "title": result.title,
        "command": result.command,
        "about": " · ".join(filter(None, ["; ".join(result.data), result.splits])),
        "says": result.says,
        "sentences": result.sentences,
        "panels": [_panel(result, panel) for panel in result.panels],
        "notes": result.notes,
    }


def _panel(result: Result, panel: str) -> Mapping[str, object]:
    head, rows = table_of(result.of(panel), result.decimals)
    kinds = ["paper" if row[0].endswith(PAPER) else "" for row in rows]
    shown = Table(head=head, rows=rows, kinds=kinds, name=panel, look="wide")
    return {"name": panel, "table": shown, "chart": draw(result, panel)}


def draw(result: Result, panel: str, *, title: str = "") -> Markup:
    """Return the chart of a panel, "" without a curve; with a title as an SVG file of its own."""
    numbers = result.of(panel)
    rows = list(dict.fromkeys(one.row for one in numbers))
    if len(rows) > _CURVES:
        rows = [row for row in rows if any(one.row == row and _is_beside(one) for one in numbers)]
    shown = [one for one in numbers if one.row in rows and one.value is not None]
    printed = {
        f"{one.row} {PAPER}": one for one in shown if one.printed is not None and one.row in rows
    }
    series = {row: _points(shown, row, lambda one: one.value) for row in rows}
    if len(rows) + len(printed) <= 2 * _CURVES:
        for name, one in printed.items():
            series[name] = _points(shown, one.row, lambda one: one.printed)
    levels = {one.row: one.value for one in shown if one.x is None and one.value is not None}
    bars = {
        row: {one.x or 1.0: one.ends for one in shown if one.row == row and one.ends}
        for row in rows
    }
    return line_chart(
        {name: points for name, points in series.items() if points},
        x_label=result.x_label,
        y_label=result.y_label,
        levels=levels,
        bars=bars,
        kinds={f"{name}{end}": one for name, one in _KINDS.items() for end in ("", f" {PAPER}")},
        logs=result.logs,
        title=title,
    )


def _is_beside(number: Number) -> bool:
    return number.printed is not None or number.row in ("privrec-plus", "dp-privrec-plus, ε = 8")


def _points(
    numbers: Sequence[Number], row: str, of: Callable[[Number], float | None]
) -> list[tuple[float, float]]:
    mine = [one for one in numbers if one.row == row]
    return [(one.x, value) for one in mine if one.x is not None and (value := of(one)) is not None]


# --- tables in pages of documentation -----------------------------------------------------------

_BLOCK = re.compile(
    r"(<!-- table of (?P<file>[\w./-]+\.json)(?:: (?P<panels>[^>]*?))? -->\n)"
    r"(?P<table>.*?)(<!-- end of table -->)",
    re.DOTALL,
)


def filled(text: str, folder: Path) -> str:
    """Return a page whose marked blocks have the tables of the JSON files that they name.

    `<!-- table of results/NAME.json: PANEL; PANEL -->` begins a block, `<!-- end of table -->` ends
    it. Files are named from `folder`. Without panels it has all of them.
    """

    def table(block: re.Match[str]) -> str:
        path = folder / block["file"]
        result = Result.read(path)
        if result is None:
            raise RunFolderError(f"there is no {path}, which a block of the page names")
        panels = [one.strip() for one in (block["panels"] or "").split(";") if one.strip()]
        if unknown := [one for one in panels if one not in result.panels]:
            raise RunFolderError(f"{path} has no panel {unknown[0]!r}")
        return f"{block[1]}\n{result.markdown(panels)}\n\n{block[5]}"

    return _BLOCK.sub(table, text)


def put_into(page: Path, results: Sequence[Result], *, commit: str, date: str) -> list[Path]:
    """Write results as JSON beside a page, in `results/`, and fill its blocks; return the files."""
    written = []
    for one in results:
        kept = one.model_copy(update={"commit": commit, "date": date})
        written.append(page.parent / "results" / f"{one.name}.json")
        write_whole(written[-1], kept.text())
    text = filled(page.read_text(encoding="utf-8"), page.parent)
    write_whole(page, text.encode())
    return [*written, page]
