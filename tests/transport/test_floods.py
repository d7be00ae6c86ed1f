"""Replies and requests that would fill a server's memory, or keep it waiting without end."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import psutil
import pytest
from link_nodes import (
    LONG,
    Asked,
    Played,
    context_of,
    linked,
    parser,
    played,
    sent,
    status_of,
    until,
)

from privrec.errors import FederationError
from privrec.transport import client
from privrec.transport import link as links
from privrec.transport.local import LOCAL
from privrec.transport.paths import CHALLENGE, STREAM
from privrec.transport.run_node import locked

__all__ = ["parser"]
MIB = 2**20


def test_heads_that_are_never_finished_are_ended(
    parser: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And connections without a word, and what follows an answer."""
    head = f"GET {CHALLENGE} HTTP/1.1\r\nHost: x\r\n".encode()
    with linked(tmp_path) as (net, _), ThreadPoolExecutor(20) as pool:
        monkeypatch.setattr(parser, "HEAD_SECONDS", 0.3)
        begun = [b"", b"G", head, head + b"\r\n" + head] * 5
        ended = list(pool.map(lambda content: sent(net, content), begun))
        assert {status_of(answer) for answer in ended[3::4]} <= {0, 200}
        assert not any(ended[k] for k in range(20) if k % 4 < 3)
        # A whole one has all the time it needs here, however slow the machine is.
        monkeypatch.setattr(parser, "HEAD_SECONDS", LONG)
        whole = sent(net, head + b"Connection: close\r\n\r\n")
        assert status_of(whole) == 200


def test_a_head_has_a_largest_size(
    parser: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is long: a name, the fields, or what follows an answer."""
    monkeypatch.setattr(parser, "HEAD_SECONDS", 2 * LONG)
    line = b"x: " + b"y" * 1000 + b"\r\n"
    first = f"GET {CHALLENGE} HTTP/1.1\r\nHost: x\r\n".encode()
    with linked(tmp_path) as (net, _), ThreadPoolExecutor(3) as pool:
        begun = [b"GET /" + b"y" * 2**23, first + line * 2**13, first + b"\r\n" + line * 2**13]
        answers = list(pool.map(lambda content: sent(net, content), begun))
        assert {status_of(answer) for answer in answers[:2]} <= {0, 400}
        assert status_of(sent(net, first + line * 30 + b"Connection: close\r\n\r\n")) == 200


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("more", ["at once", "later"])
def test_a_request_behind_a_stream_does_not_keep_it_open_for_ever(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HEARTBEAT", 0.1)
    with linked(tmp_path) as (net, link), Played(net, 0) as node:
        content = json.dumps(node.signed(node.challenge())).encode()
        lines = [f"POST {STREAM} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", "", ""]
        request = "\r\n".join(lines).encode() + content
        next_one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        safe = context_of(net).wrap_socket(
            socket.create_connection((LOCAL, net.port), timeout=LONG), server_hostname=LOCAL
        )
        with safe:
            if more == "at once":
                safe.sendall(request + next_one)
            else:
                safe.sendall(request)
                until(lambda: link.online() == {0})
                safe.sendall(next_one)
            time.sleep(0.3)
        until(lambda: not link.online())
        node.enter().leave()


def test_connections_leave_the_server_files_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.dup(0)
    os.close(free)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 200, limit[1]))
    monkeypatch.setattr(links, "_allow_connections", lambda: None)
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 1.0)
    monkeypatch.setattr(links, "_EACH_ADDRESS", 10_000)
    try:
        with linked(tmp_path, 0) as (net, link), ExitStack() as stack:
            ended = 0
            while ended < 50:
                one = stack.enter_context(socket.create_connection((LOCAL, net.port)))
                one.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    ended += not one.recv(1)
                    one.close()
            os.close(os.dup(0))
            assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_one_address_has_a_largest_number_of_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other addresses still come in, and so does the address itself when it has closed some."""
    monkeypatch.setattr(links, "_EACH_ADDRESS", 10)
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 600.0)
    with linked(tmp_path) as (net, link), ExitStack() as stack:
        place = (LOCAL, net.port)
        many = [stack.enter_context(socket.create_connection(place, LONG)) for _ in range(40)]
        # 10, and two for each of three nodes, are left open; the others end without a word.
        until(lambda: sum(is_ended(one) for one in many) == 24)
        other = socket.create_connection(place, LONG, source_address=("127.0.0.2", 0))
        with context_of(net).wrap_socket(other, server_hostname=LOCAL) as safe:
            safe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert safe.recv(99).startswith(b"HTTP/1.1 200 ")
        for one in many:
            one.close()
        net.start(0)
        until(lambda: link.online() == {0})


def test_connections_of_one_network_count_as_those_of_one_address() -> None:
    assert links._origin("10.0.0.1") != links._origin("10.0.0.2")
    assert links._origin("2001:db8::1") == links._origin("2001:db8::ffff:2")
    assert links._origin("2001:db8::1") != links._origin("2001:db8:0:1::1")
    assert links._origin("fe80::1%eth0") == links._origin("fe80::2")
    assert links._origin("::ffff:10.0.0.1") == links._origin("10.0.0.1")


def is_ended(line: socket.socket) -> bool:
    """Return whether the other side has ended a connection on which it says nothing first."""
    line.setblocking(False)
    try:
        return not line.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


OPEN = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
lines = []
for _ in range(int(sys.argv[3])):
    line = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    lines.append(context.wrap_socket(line, server_hostname="127.0.0.1"))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_connection_that_waits_holds_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_EACH_ADDRESS", 1000)
    count, me = 400, psutil.Process()
    with linked(tmp_path) as (net, _):
        before = me.memory_info().rss
        words = [sys.executable, "-c", OPEN, str(net.ca), str(net.port), str(count)]
        strangers = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with strangers:
            assert strangers.stdout is not None
            assert strangers.stdout.readline() == b"open\n"
            held = me.memory_info().rss - before
    # 0.29 MB with the buffers that asyncio takes.
    assert held < count * 120_000


@pytest.mark.usefixtures("parser")
def test_a_stranger_can_send_neither_a_large_request_nor_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(*lines: str) -> bytes:
        return "\r\n".join([f"POST {STREAM} HTTP/1.1", "Host: x", *lines, "", ""]).encode()

    with linked(tmp_path) as (net, _):
        assert status_of(sent(net, request("Content-Length: 4097"))) == 413
        assert status_of(sent(net, request(f"Content-Length: {'9' * 30}"))) in (400, 411)
        assert status_of(sent(net, request("Transfer-Encoding: chunked") + b"1\r\nx\r\n")) == 411
        monkeypatch.setattr(links, "PATIENCE", 0.3)
        assert status_of(sent(net, request("Content-Length: 9") + b"{")) == 408


@pytest.mark.usefixtures("parser")
def test_a_reply_must_be_as_long_as_it_says_and_there_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with linked(tmp_path) as (net, link), played(net, 0) as [node]:
        asked = link.ask({0: b"abc"}, LONG, 3)
        number, _ = node.next()
        chunked = node.head(number, "Transfer-Encoding: chunked", "Connection: close")
        assert status_of(sent(net, chunked + b"3\r\ncba\r\n0\r\n\r\n")) == 411
        for said in ("-3", "+3", "3 3", "x", "", "³"):
            answer = sent(net, node.head(number, f"Content-Length: {said}", "Connection: close"))
            assert status_of(answer) in (400, 411), said
        # Longer than it says; both parsers see another request in what is left.
        lines = ("Content-Length: 3", "Transfer-Encoding: chunked", "Connection: close")
        answer = sent(net, node.head(number, *lines) + b"9\r\nabcdefghi\r\n0\r\n\r\n")
        assert status_of(answer) == 400
        before = net.counts["refused 400"]
        sent(net, node.head(number, "Content-Length: 3") + b"cb", half=True)
        until(lambda: net.counts["refused 400"] == before + 1)
        with monkeypatch.context() as patch:
            patch.setattr(links, "PATIENCE", 0.1)
            late = sent(net, node.head(number, "Content-Length: 3") + b"cb")
        assert status_of(late) == 408
        # After all this, the right one is taken.
        assert node.reply(number, b"cba") == 204
        assert dict(asked) == {0: b"cba"}


@pytest.mark.usefixtures("parser")
def test_a_reply_that_is_too_large_is_not_read_and_counts_as_an_empty_one(tmp_path: Path) -> None:
    """Also one of a terabyte: nobody waits for it."""
    with linked(tmp_path, 1) as (net, link), played(net, 0) as [node]:
        for length in (4, 2**40):
            asked = link.ask({0: b"abc", 1: b"abc"}, LONG, 3)
            number, _ = node.next()
            assert status_of(sent(net, node.head(number, f"Content-Length: {length}"))) == 413
            assert dict(asked) == {0: b"", 1: b"cba"}
            assert node.reply(number, b"cba") == 410
        assert net.counts["bytes in"] == 6
    # A whole node that sends too much: its reply is empty, and it can be asked again.
    with linked(tmp_path / "whole", 0) as (net, link):
        assert dict(link.ask({0: bytes(5 * MIB)}, LONG, 3)) == {0: b""}
        until(lambda: link.online() == {0})
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}


@pytest.mark.slow
def test_replies_that_do_not_fit_together_come_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes whose replies have to wait neither give up nor come back."""
    real = client._client

    def impatient(server: str, ca: Path) -> httpx.Client:
        made = real(server, ca)
        made.timeout = httpx.Timeout(LONG, read=0.5, write=0.5)
        return made

    monkeypatch.setattr(client, "_client", impatient)
    monkeypatch.setattr(links, "MEMORY", MIB)
    with linked(tmp_path, 0, 1, 2) as (net, link):
        heard = {}
        # The second is larger than all memory: it is read alone.
        sizes = {0: MIB * 3 // 4, 1: 5 * MIB, 2: MIB * 3 // 4}
        for node, reply in link.ask({k: bytes(size) for k, size in sizes.items()}, LONG, 2**23):
            time.sleep(0.8)
            heard[node] = len(reply)
            assert net.counts["bytes in"] == sum(heard.values())
        assert heard == sizes
        assert "offline" not in {state for _, state in net.told}


def test_memory_is_given_back_when_an_exchange_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply may be in use, be waiting to be used, be read, or wait for memory at that moment."""
    monkeypatch.setattr(links, "MEMORY", MIB)
    with linked(tmp_path) as (net, link), played(net, 0, 1, 2) as nodes:
        everybody = dict.fromkeys(range(3), b"abc")
        # In the first turn, a second reply fits beside the one in use; in the second turn, none.
        for turn, size in enumerate((MIB // 2, MIB), 1):
            asked: Any = link.ask(everybody, LONG, MIB)
            numbers = [node.next()[0] for node in nodes]
            assert nodes[0].reply(numbers[0], bytes(size)) == 204
            assert next(asked) == (0, bytes(size))
            begun = sent(net, nodes[1].head(numbers[1], f"Content-Length: {size}"), half=True)
            assert begun == b""
            with ThreadPoolExecutor(1) as pool:
                late = pool.submit(nodes[2].reply, numbers[2], bytes(size))
                until(lambda: late.done() or size == MIB)  # noqa: B023 (called at once)
                asked.close()
                late.result(LONG)
            # A reply that the server has not begun to read by then is late.
            refused = 1 if turn == 1 else 3
            until(lambda: net.counts["refused 400"] + net.counts["refused 410"] == refused)  # noqa: B023
        last = Asked(link, everybody, most=MIB)
        for node in nodes:
            assert node.reply(node.next()[0], bytes(MIB)) == 204
        assert last.heard() == dict.fromkeys(range(3), bytes(MIB))


def test_a_second_program_on_a_nodes_folder_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(FederationError, match="another program serves")
    with locked(tmp_path), refused, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
