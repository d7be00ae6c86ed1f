"""The link on loopback with TLS and enrolled keys, and records that are garbage."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privrec.errors import WireError
from privrec.protocol.certificates import (
    make_authority,
    make_node_key,
    public_key_text,
)
from privrec.transport.link import open_link
from privrec.transport.local import free_port
from privrec.transport.records import KEY, STYPE, from_record, to_record

NODE = """
import sys
from pathlib import Path
from privrec.errors import FederationError
from privrec.transport.supernode import serve

def handle(request: bytes) -> bytes:
    if request == b"raise":
        raise ValueError("a private thing")
    return request[::-1]

folder, superlink, ca, key, port = sys.argv[1:]
try:
    serve(handle, folder=Path(folder), superlink=superlink, ca=Path(ca), key=Path(key),
          port=int(port), patience=5.0)
except FederationError as error:
    sys.exit(f"refused: {error}")
"""


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def start_node(folder: Path, k: int, port: int) -> subprocess.Popen[str]:
    arguments = [folder / f"n{k}", f"127.0.0.1:{port}", folder / "ca.crt", folder / f"key{k}"]
    return subprocess.Popen(
        [sys.executable, "-c", NODE, *map(str, arguments), str(free_port())],
        stderr=subprocess.PIPE,
        text=True,
    )


def end(node: subprocess.Popen[str]) -> None:
    node.terminate()
    node.communicate(timeout=120)


# Flower packs an app with a call that its library `pathspec` deprecates.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_two_nodes_answer_over_tls_and_a_dead_one_is_missing(tmp_path: Path) -> None:
    make_authority(tmp_path, hosts=["127.0.0.1"])
    for k in range(3):
        make_node_key(tmp_path / f"key{k}")
    keys = [public_key_text(tmp_path / f"key{k}") for k in range(2)]
    port = free_port()
    large = os.urandom(20_000_000)
    nodes: list[subprocess.Popen[str]] = []
    try:
        with open_link(tmp_path, keys, host="127.0.0.1", port=port) as link:
            nodes += [start_node(tmp_path, k, port) for k in range(3)]
            stop = time.monotonic() + 300
            while link.online() != {0, 1}:
                assert time.monotonic() < stop
                time.sleep(0.2)
            assert dict(link.ask({0: b"abc", 1: b""}, 30.0)) == {0: b"cba", 1: b""}
            assert dict(link.ask({0: b"raise", 1: large}, 60.0)) == {1: large[::-1]}
            refuses_strangers(tmp_path, port)
            nodes[0].send_signal(signal.SIGKILL)
            begin = time.monotonic()
            assert dict(link.ask({0: b"abc", 1: b"xyz"}, 15.0)) == {1: b"zyx"}
            # A message lives for a minute longer than its deadline: nobody waits for that.
            assert time.monotonic() - begin < 45.0
            _, said = nodes[2].communicate(timeout=300)
            assert "refused: " in said
            assert "it is not enrolled there" in said
        private = stat.S_IMODE((tmp_path / "superlink").stat().st_mode)
        assert private == 0o700
        assert not list((tmp_path / "superlink").rglob("*.db*"))
    finally:
        for node in nodes:
            end(node)
    logs = [path.read_text() for path in tmp_path.rglob("*.log")]
    assert len(logs) == 4
    assert not [text for text in logs if "\x1b" in text]


def refuses_strangers(folder: Path, port: int) -> None:
    """Whoever lacks the server's secret cannot enroll a node, though Flower would allow it."""
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest
    from flwr.supercore.control import ControlHttpClient

    control = ControlHttpClient.from_server_address(
        f"127.0.0.1:{port}",
        insecure=False,
        root_certificates=(folder / "ca.crt").read_bytes(),
        interceptors=[],
    )
    with pytest.raises(httpx.HTTPStatusError) as refused:
        control.ListNodes(ListNodesRequest())
    control.close()
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("content", [b"", b"abc", bytes(range(256)) * 40])
def test_bytes_survive_a_record(content: bytes) -> None:
    assert from_record(to_record(content)) == content


def garbage() -> list[Any]:
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    def one(array: Array) -> RecordDict:
        return RecordDict({KEY: ArrayRecord({KEY: array})})

    good = Array("uint8", (3,), STYPE, b"abc")
    return [
        None,
        b"abc",
        RecordDict(),
        RecordDict({"other": ArrayRecord({KEY: good})}),
        RecordDict({KEY: ConfigRecord({KEY: b"abc"})}),
        RecordDict({KEY: ArrayRecord()}),
        RecordDict({KEY: ArrayRecord({KEY: good, "more": good})}),
        RecordDict({KEY: ArrayRecord({KEY: good}), "more": ConfigRecord()}),
        one(Array("uint8", (4,), STYPE, b"abc")),
        one(Array("uint8", (1, 3), STYPE, b"abc")),
        one(Array("float32", (3,), STYPE, b"abc")),
        one(Array("object", (3,), "numpy.ndarray", b"\x80\x04N.")),
        one(Array(np.zeros(3, np.uint8))),
    ]


@pytest.mark.parametrize("k", range(13))
def test_garbage_is_a_wire_error(k: int) -> None:
    with pytest.raises(WireError):
        from_record(garbage()[k])
