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
    """Return the run folder of a server's folder; any other path is returned as it is."""
    return path / "run" if is_server(path) else path


def node_table(terms: "Terms", status: "ServerStatus") -> Table:
    """Return a table with one row for each enrolled node: its last answer, and if it is missing."""
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
    """Return when a node was last there, and how long ago that is."""
    if when is None:
        return "not seen yet"
    ago = duration(max(0.0, time.time() - when))
    return f"since {datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S} ({ago})"


def nodes_html(path: Path) -> Markup:
    """Return the table of nodes, the counts of refused replies, and a warning without a server."""
    # A page about a run needs no JAX, which these import.
    from privrec.protocol.enrolment import ServerFolder, is_running
    from privrec.protocol.server import ServerStatus
    from privrec.protocol.terms import read_terms

    folder = ServerFolder(path)
    try:
        status, terms = ServerStatus.read(folder.status), read_terms(folder.terms)
    except (FederationError, OSError):
        return Markup()  # The server has not started yet.
    return part(
        "nodes.html",
        table=node_table(terms, status),
        step=status.step,
        refused=sorted(status.refused.items()),
        runs=is_running(folder),
    )
