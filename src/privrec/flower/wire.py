"""Messages between the server and a node: a few words about them, and named arrays."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from privrec.core.contribution import told_from_bytes, told_to_bytes
from privrec.errors import WireError
from privrec.types import Leaf

_ABOUT = "about"
_WORDS = 2**22
"""The most bytes of the part of a message that is not arrays: keys and shares of many nodes."""
SLACK = 2**16
"""The bytes that a message may have beyond its arrays."""


TOLD = "told "
"""Before the names of what the server tells, among the arrays of a message."""


class Message(NamedTuple):
    """What one side sends: `about` has plain values, `arrays` has numbers by name."""

    about: Mapping[str, Any]
    arrays: Mapping[str, Leaf]


def pack(about: Mapping[str, Any], arrays: Mapping[str, Leaf] | None = None) -> bytes:
    """Return the message as bytes. Byte strings in `about` become text."""
    words = json.dumps(about, default=_as_text, sort_keys=True).encode()
    return told_to_bytes({**(arrays or {}), _ABOUT: np.frombuffer(words, np.uint8)})


def unpack(content: bytes) -> Message:
    """Return the message of these bytes, or raise `WireError`."""
    arrays = told_from_bytes(content)
    words = arrays.pop(_ABOUT, None)
    if words is None or words.dtype != np.uint8 or words.ndim != 1 or words.size > _WORDS:
        raise WireError("a message does not say what it is about")
    try:
        about = json.loads(words.tobytes())
    except (ValueError, RecursionError) as error:
        raise WireError("a message does not say what it is about") from error
    if not isinstance(about, dict):
        raise WireError("a message does not say what it is about")
    return Message(about, arrays)


def signed(body: bytes, request: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a reply with the node's signature, which is for this request alone."""
    signature = sign(_of_reply(request, body))
    return len(signature).to_bytes(2, "big") + signature + body


def verified(content: bytes, request: bytes, verify: Callable[[bytes, bytes], bool]) -> bytes:
    """Return the body of a signed reply; raise `WireError` if it is not signed for this request."""
    size = int.from_bytes(content[:2], "big")
    signature, body = content[2 : 2 + size], content[2 + size :]
    if not verify(_of_reply(request, body), signature):
        raise WireError("a reply is not signed by the node that was asked")
    return body


def _of_reply(request: bytes, body: bytes) -> bytes:
    parts = (hashlib.sha256(part).digest() for part in (request, body))
    return b"privrec reply " + b"".join(parts)


def round_context(
    federation: str, run: str, round_index: int, attempt: int, clip_norm: float
) -> bytes:
    """Return what keys and signatures of one attempt of one round are bound to.

    The bound is in it, since the unit of the coding follows from it: nodes with different units
    would add less noise than is counted.
    """
    return f"privrec {federation} {run} {round_index} {attempt} {clip_norm!r}".encode()


def whole(about: Mapping[str, Any], name: str, least: int = 0) -> int:
    """Return a whole number of a message, or raise."""
    value = about.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
        raise WireError(f"`{name}` must be a whole number >= {least}")
    return value


def number(about: Mapping[str, Any], name: str) -> float:
    """Return a number > 0 of a message, which may be infinite, or raise."""
    value = about.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise WireError(f"`{name}` must be a number > 0")
    try:
        return float(value)
    except OverflowError as error:
        raise WireError(f"`{name}` is too large") from error


def keys_by_node(value: object) -> dict[int, dict[str, bytes]]:
    """Return each node's byte strings by name, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError("`keys` must name nodes")
    try:
        return {int(node): blobs_by_name(parts) for node, parts in value.items()}
    except ValueError as error:
        raise WireError("`keys` must name nodes") from error


def blobs(value: object, what: str) -> dict[int, bytes]:
    """Return byte strings by node, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError(f"`{what}` must name nodes")
    try:
        return {int(node): bytes.fromhex(text) for node, text in value.items()}
    except (ValueError, TypeError) as error:
        raise WireError(f"`{what}` must have bytes for each node") from error


def blobs_by_name(value: object) -> dict[str, bytes]:
    """Return byte strings by name, as `pack` wrote them, or raise."""
    if not isinstance(value, dict):
        raise WireError("keys must have names")
    try:
        return {str(name): bytes.fromhex(text) for name, text in value.items()}
    except (ValueError, TypeError) as error:
        raise WireError("keys must be bytes") from error


def vector(arrays: Mapping[str, Leaf], name: str, size: int, kind: type) -> Leaf:
    """Return an array of exactly this size and kind of number, or raise."""
    found = arrays.get(name)
    if found is None or found.dtype != kind or found.shape != (size,):
        raise WireError(f"`{name}` must have {size:,} numbers of {np.dtype(kind)}")
    return found


def row(arrays: Mapping[str, Leaf], name: str, size: int) -> Leaf:
    """Return an array of exactly this size of finite numbers, or raise."""
    found = arrays.get(name)
    if found is None or found.dtype not in (np.float32, np.float64) or found.shape != (size,):
        raise WireError(f"`{name}` must have {size:,} numbers")
    if not np.isfinite(found).all():
        raise WireError("a sum is not finite")
    return found


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"cannot send {type(value).__name__}")
