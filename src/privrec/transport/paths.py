"""What both sides of the link over HTTP agree on: paths, headers, and frames of a stream.

A node opens one stream and keeps it open: the server sends requests through it, and knows by it who
is there. A frame is a number, a length and so many bytes. The number 0 has the token of the stream
in its first frame, and nothing afterwards: that is a sign of life.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator

from privrec.errors import WireError

CHALLENGE, STREAM, REPLIES = "/v1/challenge", "/v1/stream", "/v1/replies"
TOKEN_HEADER, FAILED_HEADER = "privrec-token", "privrec-failed"
WAITS_HEADER = "privrec-waits"
"""In the head of a stream: the number of the request whose reply the server still waits for."""
HEARTBEAT = 15.0
"""Seconds between two signs of life of the server; three of them late, and it is gone (by hand)."""
LARGEST_FRAME = 1 << 30
_HEAD = struct.Struct(">QQ")


def statement(authority: bytes, challenge: str) -> bytes:
    """Return what a node signs to open a stream.

    `authority` is ca.crt: a signature for one federation's server opens nothing at another's.
    """
    return b"privrec stream " + hashlib.sha256(authority).digest() + challenge.encode("ascii")


def head_of(number: int, length: int) -> bytes:
    """Return the head of a frame."""
    return _HEAD.pack(number, length)


def frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) of each frame in a stream of bytes."""
    buffer, needed = bytearray(), _HEAD.size
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= needed:
            number, length = _HEAD.unpack_from(buffer)
            if length > LARGEST_FRAME:
                raise WireError(f"a request has {length:,} bytes; at most {LARGEST_FRAME:,} may be")
            needed = _HEAD.size + length
            if len(buffer) < needed:
                break
            yield number, bytes(memoryview(buffer)[_HEAD.size : needed])
            del buffer[:needed]
            needed = _HEAD.size
