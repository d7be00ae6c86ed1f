"""The page of runs side by side."""

from privrec.show.comparison import Evaluations, any_attacked, columns, comparison
from privrec.show.page import html_text, note, page, table
from privrec.show.report import ATTACKED_NOTE, RAW_NOTE, statement_html


def render_comparison(evaluations: Evaluations, settings: Evaluations) -> str:
    """Return the page that shows several runs side by side, one table for each data set."""
    parts = ["<h1>Runs side by side</h1>"]
    attacked = any_attacked(evaluations)
    head = columns(attacked=attacked)
    for data, lines in comparison(evaluations, settings).items():
        cells = [line.cells(attacked=attacked) for line in lines]
        kinds = [line.kind for line in lines]
        parts += [
            f"<h2>{html_text(data)}</h2>",
            table(head, cells, kinds=kinds, name=f"Hits@k on {data}", look="wide words"),
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
        parts.append(statement_html(evaluation["privacy"], f"<b>{html_text(name)}</b>: "))
    parts.append(RAW_NOTE)
    return page("Runs side by side", parts)
