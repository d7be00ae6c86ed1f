"""A node for the benchmarks: it also answers requests that ask for nothing, at once."""

import sys
from pathlib import Path

from privrec.protocol.enrolment import NodeFolder
from privrec.protocol.terms import read_terms
from privrec.transport.client import serve
from privrec.transport.processes import end_with_parent
from privrec.transport.run_node import open_node

NOTHING = b"nothing"


def nothing(request: bytes) -> bytes:
    """Return as many bytes as the request asks for, or nothing for a real request."""
    if not request.startswith(NOTHING):
        return b""
    return NOTHING + bytes(int.from_bytes(request[len(NOTHING) : len(NOTHING) + 8], "big"))


def main() -> None:
    folder, terms, ca, server = sys.argv[1:]
    end_with_parent(grace=5.0)
    node = open_node(Path(folder), read_terms(Path(terms)))
    serve(
        lambda request: nothing(request) or node.handle(request),
        server=server,
        ca=Path(ca),
        key=NodeFolder(path=Path(folder)).key,
    )


if __name__ == "__main__":
    main()
