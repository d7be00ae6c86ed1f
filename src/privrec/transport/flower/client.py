"""The ClientApp: a node of privrec that answers requests which come over Flower.

Flower starts a new process for each message. So the secrets of an attempt are kept in the state of
Flower's context, in the memory of the SuperNode. The node's folder has a hash of the state that may
be used next; it is deleted before the state is used. So no state is used twice, also after a crash.
"""

import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privrec.errors import FederationError
from privrec.protocol.certificates import public_key_text, read_private_key, sign, write_private
from privrec.protocol.enrolment import NodeFolder
from privrec.protocol.terms import Terms, check_transport, read_terms
from privrec.transport.flower.app import NODE, NODES, accepted_terms, node_folders
from privrec.transport.flower.payload import content_of, greeting, record_of
from privrec.transport.run_node import locked, open_node

LOG = logging.getLogger("privrec.node")
_STATE = "privrec"
app = ClientApp()


def node_folder(context: Context) -> Path:
    """Return the folder of the node that a SuperNode, or a node of the simulation, serves."""
    if NODE in context.node_config:
        return Path(str(context.node_config[NODE]))
    nodes, number = context.run_config.get(NODES), context.node_config.get("partition-id")
    if not nodes or not isinstance(number, int):
        raise FederationError(f"`{NODE}` must be in the node config of this SuperNode")
    return node_folders(Path(str(nodes)))[number]


def greet(path: Path, challenge: bytes) -> bytes:
    """Return the number of this node and its signature of the challenge and its accepted terms."""
    terms = _accepted(path)
    open_node(path, terms)
    mine = public_key_text(NodeFolder(path).key)
    number = [member.public_key for member in terms.members].index(mine)
    made = sign(read_private_key(NodeFolder(path).key), greeting(terms.fingerprint, challenge))
    return number.to_bytes(8, "big") + made


def answer(path: Path, request: bytes, state: bytes) -> tuple[bytes, bytes]:
    """Return the reply to a request, and the state for the next request."""
    # Times are compared over several processes, so they come from the clock of the day.
    node, mark = open_node(path, _accepted(path), clock=time.time), path / "flower-state"
    expected = mark.read_bytes() if mark.is_file() else b""
    mark.unlink(missing_ok=True)
    if state and hashlib.sha256(state).digest() == expected:
        node.restore(state)
    reply = node.handle(request)
    after = node.saved()
    if after:
        write_private(mark, hashlib.sha256(after).digest())
    return reply, after


def _accepted(path: Path) -> Terms:
    """Return the terms that the owner of the node accepted, whatever the server says."""
    file = accepted_terms(path)
    if not file.is_file():
        raise FederationError(f"no terms are accepted in {path}: `privrec federate flower-node`")
    terms = read_terms(file)
    check_transport(terms, "flower")
    return terms


def _greet(message: Message, context: Context) -> Message:
    def work(path: Path) -> bytes:
        return greet(path, content_of(message))

    return _reply(message, context, work)


def _answer(message: Message, context: Context) -> Message:
    def work(path: Path) -> bytes:
        kept = context.state.config_records.get(_STATE, {})
        reply, after = answer(path, content_of(message), bytes(kept.get("state", b"")))
        context.state[_STATE] = ConfigRecord({"state": after})
        return reply

    return _reply(message, context, work)


def _reply(message: Message, context: Context, work: Callable[[Path], bytes]) -> Message:
    """Return the reply; an error tells the server no more than the name of its class."""
    try:
        path = node_folder(context)
        with locked(path):
            content = work(path)
    except Exception as error:
        LOG.exception("a message could not be answered")
        why = type(error).__name__
    else:
        return Message(RecordDict(record_of(content)), reply_to=message)
    raise FederationError(f"{why}; the log of the SuperNode has more")


app.query()(_greet)
app.train()(_answer)
