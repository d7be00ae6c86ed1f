"""Run a node of a federation: open its folder, check the terms, and answer until it is stopped."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from privrec.data import catalogue as catalogues
from privrec.errors import FederationError, PrivrecError
from privrec.protocol.certificates import (
    check_certificate,
    public_key_text,
    read_private_key,
    sign,
    verify,
)
from privrec.protocol.enrolment import NodeFolder, read_people
from privrec.protocol.node import Node, Reveals
from privrec.protocol.terms import (
    Terms,
    catalogue_hash,
    check_transport,
    phases_of,
    plan_of,
    read_terms,
)
from privrec.transport.client import serve
from privrec.transport.processes import end_with_parent


def open_node(path: Path, terms: Terms, *, clock: Callable[[], float] = time.monotonic) -> Node:
    """Return the node with its key and its people's data; raise unless it fits the terms."""
    folder = NodeFolder(path)
    people, catalogue = read_people(folder)
    mine = public_key_text(folder.key)
    keys = [member.public_key for member in terms.members]
    if mine not in keys:
        raise FederationError(f"the node in {path} is not enrolled in these terms")
    if catalogue_hash(catalogues.to_json(catalogue)) != terms.catalogue:
        raise FederationError(f"the data in {path} is coded by another catalogue than the terms'")
    private, node = read_private_key(folder.key), keys.index(mine)
    if len(people) != terms.members[node].people:
        raise FederationError(
            f"the terms have {terms.members[node].people:,} people of the node in {path}, which has"
            f" {len(people):,}"
        )
    plan = plan_of(terms, catalogue, people, node)
    # An error in `phases_of` could depend on people's data. It must be raised here, before the
    # server asks, so that it does not become a reply to the server.
    phases_of(plan)
    return Node(
        terms,
        node,
        phases=lambda: phases_of(plan),
        take=plan.task.federation.take,
        schema=catalogue.schema,
        sign=lambda content: sign(private, content),
        verify=lambda node, content, made: (
            0 <= node < len(keys) and verify(keys[node], content, made)
        ),
        reveals=Reveals(folder.reveals(terms.fingerprint)),
        clock=clock,
    )


def serve_node(
    path: Path,
    *,
    terms: Path,
    ca: Path,
    server: str,
    on_state: Callable[[str], None] = lambda state: None,
) -> None:
    """Answer the server's requests for the people of this node, until SIGTERM or SIGINT."""
    known = read_terms(terms)
    check_transport(known, None)
    with locked(path):
        node = open_node(path, known)
        serve(node.handle, server=server, ca=ca, key=NodeFolder(path).key, on_state=on_state)


def check_node(path: Path, *, terms: Path, ca: Path) -> None:
    """Raise unless the folder, the terms and the certificate are valid and fit together."""
    known = read_terms(terms)
    check_transport(known, None)
    if not path.is_dir():
        raise FederationError(f"{path} is no folder of a node")
    open_node(path, known)
    check_certificate(ca)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a node's folder. Two programs with one folder would count their answers separately."""
    if not path.is_dir():
        raise FederationError(f"{path} is no folder of a node")
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise FederationError(f"another program serves the node in {path}") from error
    try:
        yield
    finally:
        os.close(handle)


def main() -> None:
    """Run one node until the parent process ends; `privrec federate up` starts this program."""
    path, terms, ca, server = sys.argv[1:]
    end_with_parent(grace=5.0)
    try:
        serve_node(Path(path), terms=Path(terms), ca=Path(ca), server=server)
    except PrivrecError as error:
        sys.exit(f"privrec: {error}")


if __name__ == "__main__":
    main()
