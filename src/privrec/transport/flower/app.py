"""What people prepare before a run over Flower: the app's folder, and the accepted terms.

The apps find their folders by these names: `SERVER` and `NODES` in the run config of the app,
`NODE` in the node config of a SuperNode.
"""

from pathlib import Path

from privrec import __version__
from privrec.errors import FederationError
from privrec.protocol.certificates import write_private
from privrec.protocol.enrolment import read_server
from privrec.protocol.terms import Terms, check_transport, read_terms
from privrec.toml import toml_value
from privrec.transport.run_node import locked, open_node

SERVER, NODE, NODES = "privrec-server", "privrec-node", "privrec-nodes"
_PROJECT = """\
[project]
name = "privrec-federation"
version = "1.0.0"
description = {description}
license = "Apache-2.0"
dependencies = ["privrec[flower]=={version}"]

[tool.flwr.app]
publisher = "privrec"

[tool.flwr.app.components]
serverapp = "privrec.transport.flower.server:app"
clientapp = "privrec.transport.flower.client:app"

[tool.flwr.app.config]
{server} = {path}
{nodes} = {folders}
"""


STATE = "flower-state"
"""The file of a node with a hash of the state of an attempt that may be used next."""


def accepted_terms(node: Path) -> Path:
    """Return the path of the terms that the owner of a node accepted for Flower."""
    return node / "flower-terms.json"


def write_app(path: Path, server: Path, nodes: Path | None) -> None:
    """Write the folder of an app for `flwr run`, for the federation of this server's folder.

    `nodes` has the folders of all nodes, for Flower's simulation engine. Without it, each node's
    folder is in the node config of its SuperNode.
    """
    _, terms, _ = read_server(server)
    check_transport(terms, "flower")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FederationError(f"{path} is in the way: choose another --out")
    if nodes is not None and len(node_folders(nodes)) != len(terms.members):
        raise FederationError(
            f"{nodes} has {len(node_folders(nodes))} folders of nodes; the terms have"
            f" {len(terms.members)} nodes"
        )
    project = _PROJECT.format(
        description=toml_value(f"{terms.settings.recipe}, trained by {len(terms.members)} nodes"),
        version=__version__,
        server=SERVER,
        path=toml_value(str(server.resolve())),
        nodes=NODES,
        folders=toml_value("" if nodes is None else str(nodes.resolve())),
    )
    try:
        content = project.encode()
    except UnicodeEncodeError as error:
        raise FederationError("the path of a folder must be text in UTF-8") from error
    path.mkdir(parents=True, exist_ok=True)
    (path / "pyproject.toml").write_bytes(content)


def node_folders(path: Path) -> list[Path]:
    """Return the folders of nodes in a folder, in the order of their names."""
    return sorted(key.parent for key in path.glob("*/key"))


def accept(node: Path, terms_path: Path, *, dry_run: bool = False) -> Terms:
    """Check the terms, and store them in a node's folder: they are accepted for Flower."""
    terms = read_terms(terms_path)
    check_transport(terms, "flower")
    with locked(node):
        open_node(node, terms)
        if not dry_run:
            # An attempt under older terms does not go on.
            (node / STATE).unlink(missing_ok=True)
            write_private(accepted_terms(node), terms.json_text.encode())
    return terms
