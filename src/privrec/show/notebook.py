"""What an object shows of itself: a few lines of text, or a small table in a notebook.

The tables have no colours of their own, so that they are readable in dark notebooks too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.data.text import short
from privrec.show.figures import figure_and_arm
from privrec.show.page import html_text

_CELL = (
    "padding:.15em .7em;text-align:{};white-space:nowrap;"
    "border-bottom:1px solid rgba(128,128,128,.35)"
)
# Inherited by hand: without a doctype, a browser gives tables a colour of their own.
_TABLE = "border-collapse:collapse;color:inherit;font:inherit"
_MOST = 8
"""Rows that an object shows as text. Chosen by hand."""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table whose cells are text from anywhere; figures are aligned right.

    Columns without any text below their name are left out.
    """
    kept = [k for k in range(len(columns)) if not k or any(row[k] for row in rows)]
    sides = ["right" if all(_is_figure(row[k]) for row in rows) else "left" for k in kept]

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="{_CELL.format(side)}">{html_text(short(cells[k], 200))}</{tag}>'
            for k, side in zip(kept, sides, strict=True)
        )

    words = html_text(short(title, 200))
    head = f'<caption style="{_CELL.format("left")}">{words}</caption>' if title else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<table style="{_TABLE}">{head}<tr>{line(columns, "th")}</tr>{body}</table>'


def _is_figure(text: str) -> bool:
    """Return whether a cell is a number, or stands for one that is not known."""
    shown = text.replace(" ± ", "").replace(",", "").replace(".", "")
    return text in ("", "-") or shown.isdecimal()


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text, its first rows alone if there are many."""
    shown = [[short(cell, 40) for cell in row] for row in [columns, *rows[:_MOST]]]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in shown
    ]
    more = [f"… and {len(rows) - _MOST:,} more"] if len(rows) > _MOST else []
    return "\n".join([*lines, *more])


def paragraph(text: str) -> str:
    """Return text from anywhere as a paragraph."""
    return f"<p>{html_text(text)}</p>"


def hits_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of an `evaluation.json`: the recipe's row, then the references'."""
    ks = list(found["hits"])
    named = [(found["recipe"], found), *found["references"].items()]
    rows = [
        [name, *(figure_and_arm(one["hits"].get(k), one.get("interval", {}).get(k)) for k in ks)]
        for name, one in named
    ]
    return ["", *(f"@{k}" for k in ks)], rows


def title_of(found: Mapping[str, Any]) -> str:
    """Return what an evaluation is of, in a few words."""
    people = found["users"]["test"]
    return f"Hits@k of {short(found['recipe'])} on {short(found['data'])}, {people:,} people tested"
