"""Some nodes of a federation as threads of one process, for the benchmarks with many nodes."""

import sys
import threading
from functools import cache, partial
from pathlib import Path
from unittest import mock

from noop_node import nothing
from privrec.protocol import certificates
from privrec.protocol.enrolment import NodeFolder
from privrec.protocol.node import Node
from privrec.protocol.terms import read_terms
from privrec.transport import run_node
from privrec.transport.client import serve
from privrec.transport.processes import end_with_parent


def answer(node: Node, request: bytes) -> bytes:
    return nothing(request) or node.handle(request)


def main() -> None:
    server, terms, ca, *folders = sys.argv[1:]
    end_with_parent(grace=0.0)
    agreed = read_terms(Path(terms))
    # Each node checks the signatures of all others: 1,000 nodes make a million checks, and this one
    # machine has to make them. So the nodes of a process share the results.
    with mock.patch.object(run_node, "verify", cache(certificates.verify)):
        nodes = {Path(folder): run_node.open_node(Path(folder), agreed) for folder in folders}
        threads = [
            threading.Thread(
                target=serve,
                args=(partial(answer, node),),
                kwargs={"server": server, "ca": Path(ca), "key": NodeFolder(folder).key},
            )
            for folder, node in nodes.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
