"""Results of a reproduction: numbers by panel, row and column, as JSON, CSV, LaTeX and Markdown.

A panel is one table and one chart of the same numbers.
"""

import csv
import io
from collections.abc import Iterable, Sequence

from pydantic import Field

from privrec.runs.documents import Document
from privrec.runs.figures import figure, figure_and_arm

PAPER = "(paper)"
"""The end of the names of rows with the paper's numbers."""


class Number(Document):
    """One number of ours, the ends of its 95 % interval, and the number in the paper (`printed`).

    `by_seed` has the figure of each seed, if the number is a mean over seeds.
    """

    panel: str
    row: str
    column: str
    value: float | None
    low: float | None = None
    high: float | None = None
    printed: float | None = None
    by_seed: list[float] = Field(default_factory=list)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval; None if it is not known."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def x(self) -> float | None:
        """The position of the number on the x axis; None if its column is not a number."""
        try:
            return float(self.column)
        except ValueError:
            return None


class Result(Document):
    """`NAME.json`: the result for one of the paper's tables or figures.

    `says` is the paper's claim. `sentences` compare our numbers with it and are made by rules.
    `notes` say how the numbers were measured. `commit` and `date` are set in docs/results only.
    """

    name: str
    title: str
    says: str
    command: str
    data: list[str]
    seeds: list[int]
    quick: bool
    x_label: str
    y_label: str
    logs: str = ""
    decimals: int = 3
    numbers: list[Number]
    sentences: list[str]
    notes: list[str] = Field(default_factory=list)
    commit: str = ""
    date: str = ""

    @property
    def panels(self) -> list[str]:
        """The names of the panels, in order."""
        return list(dict.fromkeys(number.panel for number in self.numbers))

    def of(self, panel: str) -> list[Number]:
        """Return the numbers of a panel."""
        return [number for number in self.numbers if number.panel == panel]

    @property
    def splits(self) -> str:
        """The seeds as text; "" if no part depends on a seed."""
        many = "s" * (len(self.seeds) > 1)
        return f"seed{many} {', '.join(map(str, self.seeds))}" if self.seeds else ""

    def csv(self) -> str:
        """Return a CSV file with a line for each number."""
        out = io.StringIO()
        names = ("panel", "row", "column", "value", "low", "high", "printed")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        for number in self.numbers:
            writer.writerow([getattr(number, name) for name in names])
        return out.getvalue()

    def latex(self) -> str:
        """Return the rows of each panel as LaTeX."""
        parts = []
        for panel in self.panels:
            head, rows = table_of(self.of(panel), self.decimals)
            cells = [[cell.translate(_TEX) for cell in row] for row in (head, *rows)]
            lines = [" & ".join(row) + r" \\" for row in cells]
            parts.append("\n".join([f"% {panel.translate(_TEX)}", *lines]))
        return "\n\n".join(parts) + "\n"

    def markdown(self, panels: Sequence[str] = ()) -> str:
        """Return the tables of these panels (default: all), with the command that computed them."""
        parts = []
        for panel in panels or self.panels:
            head, rows = table_of(self.of(panel), self.decimals)
            table = [[panel, *head[1:]], ["---"] * len(head), *rows]
            parts.append("\n".join(map(_row, table)))
        commit = self.commit and f"commit {self.commit}"
        known = filter(None, [f"`{self.command}`", self.splits, self.date, commit])
        return "\n\n".join([*parts, f"{'; '.join(known)}."])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


_TEX = str.maketrans(
    {
        **{"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#"},
        **{"±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$"},
    }
)


def table_of(numbers: Sequence[Number], decimals: int = 3) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a panel as text.

    The paper's numbers for a row follow in a row of their own.
    """
    columns = list(dict.fromkeys(number.column for number in numbers))
    known = {(number.row, number.column): number for number in numbers}
    rows = []
    for name in dict.fromkeys(number.row for number in numbers):
        in_row = [known.get((name, column)) for column in columns]
        cells = ("" if number is None else _cell(number, decimals) for number in in_row)
        rows.append([name, *cells])
        printed = [None if number is None else number.printed for number in in_row]
        if any(value is not None for value in printed):
            shown = ("" if value is None else figure(value, decimals) for value in printed)
            rows.append([f"{name} {PAPER}", *shown])
    return ["", *columns], rows


def _cell(number: Number, decimals: int) -> str:
    if number.value is None or decimals != 3:
        return figure(number.value, decimals)
    return figure_and_arm(number.value, number.ends)
