"""A node for the benchmarks: it also answers requests that ask for nothing, at once."""

import sys
from pathlib import Path

from privrec.algorithms.recipes import settings_of
from privrec.flower.enrolment import NodeFolder
from privrec.flower.node import open_host
from privrec.flower.processes import end_with_parent
from privrec.flower.supernode import serve
from privrec.flower.terms import from_json

NOTHING = b"nothing"


def main() -> None:
    folder, terms, ca, server, port = sys.argv[1:]
    end_with_parent(grace=5.0)
    host = open_host(Path(folder), from_json(Path(terms).read_bytes(), terms, settings_of))
    serve(
        lambda request: NOTHING if request == NOTHING else host.handle(request),
        folder=Path(folder),
        superlink=server,
        ca=Path(ca),
        key=NodeFolder(path=Path(folder)).key,
        port=int(port),
    )


if __name__ == "__main__":
    main()
