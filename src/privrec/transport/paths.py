"""Paths, headers and the format of a stream, for the HTTP link between server and nodes.

A node opens one stream and keeps it open. The server sends its requests through this stream, and a
node with an open stream counts as online. A stream consists of frames. A frame is the number of a
request, a length, and that many bytes. The first frame has the number 0 and the token of the
stream. Later frames with the number 0 are empty and only show that the server is alive.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator

from privrec.errors import WireError

CHALLENGE, STREAM, REPLIES = "/v1/challenge", "/v1/stream", "/v1/replies"
TOKEN_HEADER, FAILED_HEADER = "privrec-token", "privrec-failed"
WAITS_HEADER = "privrec-waits"
"""A header of a stream: the number of the request whose reply the server still waits for."""
HEARTBEAT = 15.0
"""Seconds between two signs of life of the server. Without any for three times as long, the node
connects again. Chosen by hand."""
LARGEST_FRAME = 1 << 30
_HEAD = struct.Struct(">QQ")


def statement(authority: bytes, challenge: str) -> bytes:
    """Return what a node signs to open a stream.

    `authority` is the content of ca.crt. With it, a signature for the server of one federation is
    not valid for the server of another federation.
    """
    return b"privrec stream " + hashlib.sha256(authority).digest() + challenge.encode("ascii")


def head_of(number: int, length: int) -> bytes:
    """Return the first 16 bytes of a frame: its number and the length of its content."""
    return _HEAD.pack(number, length)


def frames(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (number, content) for each frame in a stream of bytes."""
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
