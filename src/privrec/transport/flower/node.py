"""The work of a node for each message, without Flower: who it is, and its reply to a request.

Flower starts a new process for each message. So the state of an attempt, with its secrets, goes to
the caller, which gives it back with the next request. The node's folder has a hash of the state
that may be used next. It is deleted before the state is used. So no state is used twice, also after
a crash: two vectors with the same masks would show their difference.
"""

import hashlib
import time
from pathlib import Path

from privrec.errors import FederationError
from privrec.protocol.certificates import public_key_text, read_private_key, sign, write_private
from privrec.protocol.enrolment import NodeFolder
from privrec.protocol.terms import Terms, check_transport, read_terms
from privrec.transport.flower.app import STATE, accepted_terms
from privrec.transport.run_node import open_node


def greeting(fingerprint: str, challenge: bytes) -> bytes:
    """Return what a node signs to say who it is, under these terms."""
    return f"privrec flower {fingerprint} ".encode() + challenge


def greet(path: Path, challenge: bytes) -> bytes:
    """Return the number of this node and its signature of the challenge and its accepted terms."""
    terms, key = _accepted(path), NodeFolder(path).key
    open_node(path, terms)
    number = [member.public_key for member in terms.members].index(public_key_text(key))
    made = sign(read_private_key(key), greeting(terms.fingerprint, challenge))
    return number.to_bytes(8, "big") + made


def answer(path: Path, request: bytes, state: bytes) -> tuple[bytes, bytes]:
    """Return the reply to a request, and the state for the next request."""
    # Several processes compare times, also on several machines: by the clock of the day.
    node, mark = open_node(path, _accepted(path), clock=time.time), path / STATE
    expected = mark.read_bytes() if mark.is_file() else b""
    mark.unlink(missing_ok=True)
    if state and hashlib.sha256(state).digest() == expected:
        node.restore(state)
    reply, after = node.handle(request), node.saved()
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
