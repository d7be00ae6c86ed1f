"""The page and pictures of a reproduction of the paper, and its tables in documentation."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from privrec.errors import RunFolderError
from privrec.reproduce.agreement import MISTAKES
from privrec.reproduce.experiments import EXPERIMENTS, SYSTEMS
from privrec.reproduce.results import PAPER, Number, Result, table_of
from privrec.runs.folder import file_errors, write_whole
from privrec.show.charts import line_chart
from privrec.show.page import Table, render

_QUICK = (
    "A quick run: made-up people and a few of MovieLens, small cohorts, few rounds. It shows that"
    " every part runs. Its figures say nothing about the paper."
)
_REMEDY = "remove it, or make it again"
_CURVES = 9
"""The most curves that readers can tell apart. With more rows, a chart has only the rows that the
paper has, and our main ones."""
_KINDS = {**SYSTEMS, **{"PrivRec-SGD": "privrec-sgd", "DP-PrivRec": "dp-privrec"}}
"""The recipe of a row, which decides its colour. The paper's curve has the same colour, dashed."""


def write_page(out: Path) -> list[Path]:
    """Write the page of the results in a folder, and a picture of each panel; return the files."""
    results = read_results(out)
    written = [out / "reproduction.html"]
    write_whole(written[0], render_reproduction(results).encode())
    for result in results:
        for number, panel in enumerate(result.panels, start=1):
            if drawn := draw(result, panel, title=panel):
                written.append(out / f"{result.name}-{number}.svg")
                write_whole(written[-1], drawn.encode())
    return written


def read_results(folder: Path) -> list[Result]:
    """Return the results in a folder, in the order of the paper's tables and figures."""
    known = [Result.read(folder / f"{name}.json", remedy=_REMEDY) for name in EXPERIMENTS]
    return [result for result in known if result is not None]


def render_reproduction(results: Sequence[Result]) -> str:
    """Return the page: a section for each result, and the paper's mistakes."""
    by_name = {result.name: result for result in results}
    return render(
        "reproduction.html",
        title="The paper reproduced",
        warnings=[_QUICK] if any(result.quick for result in results) else [],
        sections=[_section(result) for result in results],
        mistakes=[(mistake, mistake.evidence(by_name)) for mistake in MISTAKES],
    )


def _section(result: Result) -> Mapping[str, object]:
    return {
        "result": result,
        "about": " · ".join(filter(None, ["; ".join(result.data), result.splits])),
        "panels": [_panel(result, panel) for panel in result.panels],
    }


def _panel(result: Result, panel: str) -> Mapping[str, object]:
    head, rows = table_of(result.of(panel), result.decimals)
    kinds = ["paper" if row[0].endswith(PAPER) else "" for row in rows]
    shown = Table(head=head, rows=rows, kinds=kinds, name=panel, look="wide")
    return {"name": panel, "table": shown, "chart": draw(result, panel)}


def draw(result: Result, panel: str, *, title: str = "") -> Markup:
    """Return the chart of a panel, "" without a curve; with a `title`, the text of an SVG file."""
    numbers = result.of(panel)
    rows = list(dict.fromkeys(number.row for number in numbers))
    if len(rows) > _CURVES:
        beside = {number.row for number in numbers if _is_beside(number)}
        rows = [row for row in rows if row in beside]
    shown = [number for number in numbers if number.row in rows and number.value is not None]
    printed = dict.fromkeys(number.row for number in shown if number.printed is not None)
    series = {row: _points(shown, row, "value") for row in rows}
    if len(rows) + len(printed) <= 2 * _CURVES:
        series |= {f"{row} {PAPER}": _points(shown, row, "printed") for row in printed}
    levels = {n.row: n.value for n in shown if n.x is None and n.value is not None}
    bars = {row: {n.x or 1.0: n.ends for n in shown if n.row == row and n.ends} for row in rows}
    return line_chart(
        {name: points for name, points in series.items() if points},
        x_label=result.x_label,
        y_label=result.y_label,
        levels=levels,
        bars=bars,
        kinds={f"{name}{end}": kind for name, kind in _KINDS.items() for end in ("", f" {PAPER}")},
        logs=result.logs,
        title=title,
    )


def _is_beside(number: Number) -> bool:
    return number.printed is not None or number.row in ("privrec-plus", "dp-privrec-plus, ε = 8")


def _points(numbers: Sequence[Number], row: str, figure: str) -> list[tuple[float, float]]:
    """Return the points (x, y) of a row whose x and y are known; `figure` names the y."""
    points = [(number.x, getattr(number, figure)) for number in numbers if number.row == row]
    return [(x, y) for x, y in points if x is not None and y is not None]


# --- tables in pages of documentation -----------------------------------------------------------

_BLOCK = re.compile(
    r"(<!-- table of (?P<file>[\w./-]+\.json)(?:: (?P<panels>[^>]*?))? -->\n)"
    r"(?P<table>.*?)(<!-- end of table -->)",
    re.DOTALL,
)
_BEGINS = "<!-- table of "


def check_page(page: Path) -> str:
    """Return the text of a page; raise unless it has blocks and all of them are complete."""
    try:
        with file_errors(page, "read"):
            text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunFolderError(f"cannot read {page}: it is not UTF-8") from error
    whole = [block[0].count(_BEGINS) == 1 for block in _BLOCK.finditer(text)]
    if not all(whole) or len(whole) != text.count(_BEGINS):
        raise RunFolderError(f"{page} has a block that names no JSON file, or that does not end")
    if not whole:
        raise RunFolderError(f"{page} has no block that could be filled (docs/reproduce.md)")
    return text


def filled(text: str, folder: Path, made: Mapping[Path, Result] | None = None) -> str:
    """Return a page with a table in each block, from the JSON file that the block names.

    `<!-- table of results/NAME.json: PANEL; PANEL -->` begins a block, `<!-- end of table -->` ends
    it. The path is relative to `folder`. A block without panels gets all of them. Results in `made`
    are used instead of their files.
    """
    return _BLOCK.sub(partial(_filled_block, folder, made or {}), text)


def _filled_block(folder: Path, made: Mapping[Path, Result], block: re.Match[str]) -> str:
    path = folder / block["file"]
    result = made.get(path) or Result.read(path, remedy=_REMEDY)
    if result is None:
        raise RunFolderError(f"there is no {path}, which a block of the page names")
    panels = [name.strip() for name in (block["panels"] or "").split(";") if name.strip()]
    if unknown := [name for name in panels if name not in result.panels]:
        raise RunFolderError(f"{path} has no panel {unknown[0]!r}")
    return f"{block[1]}\n{result.markdown(panels)}\n\n{block[5]}"


def put_into(page: Path, results: Sequence[Result], *, commit: str, date: str) -> list[Path]:
    """Write results as JSON to `results/` beside a page and fill its blocks; return the files."""
    made = {
        page.parent / "results" / f"{result.name}.json": result.model_copy(
            update={"commit": commit, "date": date}
        )
        for result in results
    }
    text = filled(check_page(page), page.parent, made)
    for path, result in made.items():
        write_whole(path, result.text())
    write_whole(page, text.encode())
    return [*made, page]
