"""Messages of a federation as anybody could write them: with any words about them."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from privrec.protocol import wire
from privrec.types import Leaf


class Message(NamedTuple):
    """What one side sends."""

    about: dict[str, Any]
    arrays: Mapping[str, Leaf]


def pack(about: Mapping[str, Any], arrays: Mapping[str, Leaf] | None = None) -> bytes:
    """Return a message; byte strings become hexadecimal text."""
    return wire.pack_text(json.dumps(about, default=bytes.hex, sort_keys=True), arrays)


def unpack(content: bytes) -> Message:
    """Return a message without any check of its words."""
    text, arrays = wire.unpack_text(content)
    return Message(json.loads(text), arrays)


def body_of(reply: bytes) -> bytes:
    """Return a signed reply without its signature, whose length varies."""
    return reply[2 + int.from_bytes(reply[:2], "big") :]


def blobs(texts: Mapping[str, str]) -> dict[int, bytes]:
    """Return byte strings by node."""
    return {int(node): bytes.fromhex(text) for node, text in texts.items()}


def blobs_by_name(texts: Mapping[str, str]) -> dict[str, bytes]:
    """Return byte strings by name."""
    return {name: bytes.fromhex(text) for name, text in texts.items()}
