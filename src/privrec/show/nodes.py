"""The nodes of a federation: a table for `privrec federate status` and for the watch page."""

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from privrec.errors import FederationError
from privrec.runs.figures import duration
from privrec.show.page import Table, part

if TYPE_CHECKING:
    from privrec.protocol.server import ServerStatus
    from privrec.protocol.terms import Terms


def is_server(path: Path) -> bool:
    """Return whether a folder is that of a federation's server."""
    return (path / "terms.json").is_file()


def run_folder_in(path: Path) -> Path:
    """Return the run folder in a server's folder, or any other path unchanged."""
    return path / "run" if is_server(path) else path


def node_table(terms: "Terms", status: "ServerStatus") -> Table:
    """Return a table with one row per node: its last answer, and whether the node is missing."""
    missing = status.missing(len(terms.members))
    rows = [
        (
            str(node),
            member.name,
            status.state.get(node, ""),
            "missing, " + since(missing[node]) if node in missing else "there",
        )
        for node, member in enumerate(terms.members)
    ]
    return Table(head=("node", "name", "last answer", ""), rows=rows, name="Nodes", look="text")


def since(when: float | None) -> str:
    """Return as text when a node last answered, and how long ago that is."""
    if when is None:
        return "not seen yet"
    ago = duration(max(0.0, time.time() - when))
    return f"since {datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S} ({ago})"


def nodes_html(path: Path) -> Markup:
    """Return the table of nodes, the counts of refusals, and a warning if no server runs."""
    # Imported here, because they import JAX, which a page about a run does not need.
    from privrec.protocol.enrolment import ServerFolder, is_running
    from privrec.protocol.server import ServerStatus
    from privrec.protocol.terms import read_terms

    folder = ServerFolder(path)
    try:
        status, terms = ServerStatus.read(folder.status), read_terms(folder.terms)
    except (FederationError, OSError):
        return Markup()  # The server has not started yet, or its files are damaged.
    return part(
        "nodes.html",
        table=node_table(terms, status),
        step=status.step,
        refused=sorted(status.refused.items()),
        runs=is_running(folder),
    )
