"""Messages between the server and a node: a short JSON document, and named arrays.

A message has the safetensors format. Its array `about` holds the JSON (`Request` or `Reply`).
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privrec.core.contribution import told_from_bytes, told_to_bytes
from privrec.errors import WireError
from privrec.protocol.masks import MOST_SIGNATURE
from privrec.types import IntArray, Leaf

_ABOUT = "about"
_LARGEST_DOCUMENT = 2**22
"""The most bytes of the JSON of a message, which has the keys and shares of many nodes."""
SLACK = 2**16
"""The bytes that a message may have in addition to its arrays."""
TOLD = "told "
"""The prefix of the names of the arrays that the server sends to all devices of a round."""
_DRAWN = "drawn"


class Attempt(NamedTuple):
    """The name of one attempt of one round of a run."""

    run: str
    round_index: int
    number: int


class _Document(BaseModel):
    """The JSON of a message. Bytes are written as hexadecimal text."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        ser_json_bytes="hex",
        val_json_bytes="hex",
        ser_json_inf_nan="constants",
    )


class Request(_Document):
    """A request of the server to a node. `kind` decides which of the last four fields it has.

    `terms` is the hash of the server's terms.
    """

    kind: str
    terms: str
    run: str
    round: int = Field(ge=0, lt=2**53)
    attempt: int = Field(ge=0, lt=2**53)
    clip_norm: float = Field(gt=0)
    keys: dict[int, dict[str, bytes]] = {}
    sealed: dict[int, bytes] = {}
    survivors: tuple[int, ...] = ()
    confirmations: dict[int, bytes] = {}

    @property
    def at(self) -> Attempt:
        """The attempt of this request."""
        return Attempt(self.run, self.round, self.attempt)

    def reply(self, **content: Any) -> "Reply":
        """Return a reply to this request, with these fields."""
        return Reply(
            kind=self.kind, run=self.run, round=self.round, attempt=self.attempt, **content
        )


class Reply(_Document):
    """The reply of a node to a request. If the node refuses, `why` has the reason.

    `blames` is the number of another node whose shares could not be used.
    """

    kind: str
    run: str = ""
    round: int = 0
    attempt: int = 0
    keys: dict[str, bytes] = {}
    shares: dict[int, bytes] = {}
    signature: bytes = Field(default=b"", max_length=MOST_SIGNATURE)
    why: str = ""
    blames: int | None = None

    @property
    def at(self) -> Attempt:
        """The attempt of this reply."""
        return Attempt(self.run, self.round, self.attempt)


_Kind = TypeVar("_Kind", Request, Reply)


def pack(about: Request | Reply, arrays: Mapping[str, Leaf] | None = None) -> bytes:
    """Return a message with this document and these arrays, as bytes."""
    return pack_text(about.model_dump_json(exclude_unset=True), arrays)


def pack_text(about: str, arrays: Mapping[str, Leaf] | None = None) -> bytes:
    """Return a message with this JSON text and these arrays, as bytes."""
    return told_to_bytes({**(arrays or {}), _ABOUT: np.frombuffer(about.encode(), np.uint8)})


def unpack(content: bytes, kind: type[_Kind]) -> tuple[_Kind, dict[str, Leaf]]:
    """Return the document and the arrays of a message, or raise `WireError`."""
    text, arrays = unpack_text(content)
    try:
        return kind.model_validate_json(text), arrays
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(str(part)[:20] for part in fault["loc"])
        raise WireError(f"a message does not say what it is about: `{field}`") from error


def unpack_text(content: bytes) -> tuple[bytes, dict[str, Leaf]]:
    """Return the JSON text and the arrays of a message, or raise `WireError`."""
    arrays = told_from_bytes(content)
    about = arrays.pop(_ABOUT, None)
    if about is None or about.dtype != np.uint8 or about.ndim != 1:
        raise WireError("a message does not say what it is about")
    if about.size > _LARGEST_DOCUMENT:
        raise WireError("a message has too much besides its arrays")
    return about.tobytes(), arrays


def drawn(people: IntArray, mine: range) -> dict[str, Leaf]:
    """Return the array of a request that says which of a node's people were drawn: a bit for each.

    `mine` are the positions of all people of the node. So the length of a request does not depend
    on who was drawn, and nobody who sees the lengths of messages learns anything about it.
    """
    bits = np.zeros(len(mine), np.bool_)
    bits[people - mine.start] = True
    return {_DRAWN: np.packbits(bits)}


def drawn_people(arrays: Mapping[str, Leaf], mine: range) -> IntArray:
    """Return the drawn people of a node, by position in order: the inverse of `drawn`."""
    bits, size = arrays.get(_DRAWN), -(-len(mine) // 8)
    if bits is None or bits.dtype != np.uint8 or bits.shape != (size,):
        raise WireError(f"`{_DRAWN}` must have a bit for each person of the node")
    whole = np.unpackbits(bits)
    if whole[len(mine) :].any():
        raise WireError(f"`{_DRAWN}` has a bit for a person whom this node does not serve")
    return mine.start + np.flatnonzero(whole)


def signed(body: bytes, request: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Return a reply with the node's signature of both the reply and the request."""
    signature = sign(_statement(request, body))
    return len(signature).to_bytes(2, "big") + signature + body


def verified(content: bytes, request: bytes, verify: Callable[[bytes, bytes], bool]) -> bytes:
    """Return the body of a signed reply; raise `WireError` unless it is signed for this request."""
    size = int.from_bytes(content[:2], "big")
    signature, body = content[2 : 2 + size], content[2 + size :]
    if not verify(_statement(request, body), signature):
        raise WireError("a reply is not signed by the node that was asked")
    return body


def _statement(request: bytes, body: bytes) -> bytes:
    parts = (hashlib.sha256(part).digest() for part in (request, body))
    return b"privrec reply " + b"".join(parts)


def round_context(federation: str, at: Attempt, clip_norm: float) -> bytes:
    """Return bytes that name one attempt of one round; keys and signatures include these bytes.

    The clipping bound is a part of them, because the unit of the coding depends on the bound.
    Nodes with different units would add less noise than the ledger counts.
    """
    return f"privrec {federation} {at.run} {at.round_index} {at.number} {clip_norm!r}".encode()


def vector(arrays: Mapping[str, Leaf], name: str, size: int, kind: type) -> Leaf:
    """Return the array `name`; raise `WireError` if its size, kind or a number is not valid."""
    array = arrays.get(name)
    if array is None or array.dtype != kind or array.shape != (size,):
        raise WireError(f"`{name}` must have {size:,} numbers of {np.dtype(kind)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise WireError("a sum is not finite")
    return array
