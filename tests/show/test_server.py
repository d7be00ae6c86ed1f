"""Who is answered, and how: this machine, with the token, by GET, and nothing but named pages."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from privrec.show import server
from privrec.show.page import page
from privrec.show.server import HTML, Answer, Query, Site, as_json
from served import Served, served

WAIT = threading.Event()


def slow(query: Query) -> Answer:
    WAIT.wait(30)
    return as_json(dict(query))


def broken(query: Query) -> Answer:
    raise RuntimeError("secret detail")


@pytest.fixture(scope="module")
def here() -> Iterator[Served]:
    text = Answer(page("a page", ["<p>hello</p>"]).encode(), HTML).wire
    pages = {"/": lambda: text, "/status": lambda: as_json({"a": 1}).wire}
    questions = {"/echo": lambda query: as_json(dict(query)), "/slow": slow, "/broken": broken}
    with served(Site(pages=pages, questions=questions)) as found:
        yield found


def test_the_token_and_the_name_of_the_machine_open_the_page(here: Served) -> None:
    for host in (f"127.0.0.1:{here.port}", f"localhost:{here.port}", f"[::1]:{here.port}"):
        status, headers, body = here.ask("/", host=host)
        assert (status, "hello" in body) == (200, True)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/status", "/echo", "/none", "/favicon.ico"])
def test_a_wrong_token_is_refused(here: Served, path: str) -> None:
    right = here.site.token
    for token in ("", "x", right[:-1], right + "x", "é"):
        assert here.ask(path, token=token)[0] == 403
    status, headers, body = here.ask(path, token=None)
    assert status == 403
    assert "default-src 'none'" in headers["content-security-policy"]
    assert right not in body


def test_a_wrong_token_is_refused_among_other_fields(here: Served) -> None:
    for token in ("", "x", here.site.token[:-1]):
        assert here.ask("/echo", a="1", token=token, b="2")[0] == 403
    assert here.document("/echo", a="1", b="2") == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.nip.io:{port}"],
)
def test_other_names_are_refused_even_with_the_token(here: Served, host: str) -> None:
    assert here.ask("/", host=host.format(port=here.port))[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(here: Served, method: str) -> None:
    status, headers, _ = here.ask("/", method=method)
    assert (status, headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/../etc/passwd", "//", "/%2e%2e/x", "/status/", "/ledger.jsonl"])
def test_no_path_leads_to_a_file(here: Served, path: str) -> None:
    assert here.ask(path)[0] == 404


def raw(here: Served, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", here.port), timeout=30) as line:
        line.sendall(text.format(host=f"127.0.0.1:{here.port}", token=here.site.token).encode())
        found = b""
        while more := line.recv(65536):
            found += more
    return found


def test_several_requests_on_one_connection_are_answered_in_their_order(here: Served) -> None:
    ask = "GET {path}?token={{token}} HTTP/1.1\r\nHost: {{host}}\r\n{end}\r\n"
    text = ask.format(path="/echo", end="") + ask.format(
        path="/status", end="Connection: close\r\n"
    )
    first, second = raw(here, text).split(b"HTTP/1.1 200 OK")[1:]
    assert first.endswith(b"{}\n")
    assert second.endswith(b'{"a": 1}\n')


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 403),
        ("GET /?token={token} HTTP/1.zzz\r\nHost: {host}\r\n\r\n", 400),
        ("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n", 403),
        ("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\nX: " + 9000 * "a" + "\r\n\r\n", 431),
        ("GET /" + 9000 * "a", 431),
        ("GET /?" + 40 * "a=1&" + "token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(
    here: Served, text: str, status: int
) -> None:
    assert raw(here, text).startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize(
    "close", ["Connection:close", "CONNECTION:  Close", "connection: x, close"]
)
def test_a_connection_ends_however_that_is_written(here: Served, close: str) -> None:
    ask = f"GET /status?token={{token}} HTTP/1.1\r\nHost: {{host}}\r\n{close}\r\n\r\n"
    for _ in range(2):
        assert raw(here, 2 * ask).count(b"HTTP/1.1 200") == 1


def test_many_requests_at_once_are_all_answered(here: Served) -> None:
    ask = "GET /status?token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n"
    last = ask.replace("Host", "Connection: close\r\nHost")
    assert raw(here, 1500 * ask + last).count(b"HTTP/1.1 200") == 1501


def test_who_has_said_all_is_still_answered(here: Served) -> None:
    ask = f"GET /echo?a=1&token={here.site.token} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", here.port), timeout=30) as line:
        line.sendall(ask.encode())
        line.shutdown(socket.SHUT_WR)
        found = b""
        while more := line.recv(65536):
            found += more
    assert found.endswith(b'{"a": "1"}\n')


def test_a_fault_says_nothing_of_itself(here: Served) -> None:
    status, _, body = here.ask("/broken")
    assert (status, "secret" in body) == (500, False)


def test_while_something_is_computed_pages_are_answered_and_the_queue_is_short(
    here: Served,
) -> None:
    WAIT.clear()
    lines = [socket.create_connection(("127.0.0.1", here.port), timeout=30) for _ in range(4)]
    ask = f"GET /slow?token={here.site.token} HTTP/1.1\r\nHost: 127.0.0.1:{here.port}\r\n\r\n"
    for line in lines:
        line.sendall(ask.encode())
    # Once a later connection was answered twice, what was sent before has been read.
    assert [here.document("/status") for _ in range(2)] == [{"a": 1}, {"a": 1}]
    assert here.ask("/echo")[0] == 503
    WAIT.set()
    for line in lines:
        assert line.recv(65536).startswith(b"HTTP/1.1 200")
        line.close()
    assert here.document("/echo", a="1") == {"a": "1"}


def test_nothing_is_answered_after_a_refusal(here: Served) -> None:
    ask = "GET /status?token={{token}} HTTP/1.1\r\nHost: {host}\r\n\r\n"
    found = raw(here, ask.format(host="evil.example") + ask.format(host="{{host}}"))
    assert (found.count(b"HTTP/1.1 "), found[:13]) == (1, b"HTTP/1.1 403 ")


def test_the_old_protocol_ends_after_its_answer(here: Served) -> None:
    ask = "GET /status?token={token} HTTP/1.0\r\nHost: {host}\r\n\r\n"
    for _ in range(2):  # The second time the request is known.
        assert raw(here, 2 * ask).count(b"HTTP/1.1 200") == 1


def test_connections_that_ask_nothing_are_closed(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.0)
    for sent in (b"", b"GET /?tok"):
        with socket.create_connection(("127.0.0.1", here.port), timeout=30) as line:
            line.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(1) == b""


def test_a_request_that_is_known_by_heart_is_answered_anew_each_time() -> None:
    """Word for word the same request, in one piece, in two, and twice at once."""
    count = iter(range(100))
    with served(Site(pages={"/": lambda: as_json({"n": next(count)}).wire})) as found:
        ask = f"GET /?token={found.site.token} HTTP/1.1\r\nHost: 127.0.0.1:{found.port}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", found.port), timeout=30) as line:
            for number, pieces in enumerate([[ask], [ask], [ask[:30], ask[30:]], [ask]]):
                for piece in pieces:
                    line.sendall(piece.encode())
                assert line.recv(65536).endswith(f'{{"n": {number}}}\n'.encode())
            line.sendall(2 * ask.encode())
            answers = b""
            while answers.count(b"}\n") < 2:
                answers += line.recv(65536)
            assert answers.index(b'{"n": 4}') < answers.index(b'{"n": 5}')


def test_connections_are_looked_at_a_hundred_times_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        clock[0] += seconds

    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    one, other = socket.socketpair()
    with one, other, server._Paced() as paced:
        paced.register(one, selectors.EVENT_READ)
        other.send(b"x")
        # After a pause a request is seen at once; the next one 10 ms later, or at its deadline.
        assert [len(paced.select(timeout)) for timeout in (None, None, 5.0, 0.004, 0.0)] == [1] * 5
        assert slept == [0.0, 0.01, 0.01, 0.004]
        clock[0] += 0.007
        assert paced.select(None)
        assert slept[-1] == 0.003


def test_silent_connections_do_not_keep_others_out(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are allowed at once, none of which ever asks."""
    monkeypatch.setattr(server, "_HEAD_SECONDS", 3600.0)
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(server._CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", here.port), timeout=60)
            silent.append(stack.enter_context(connection))
        for _ in range(3):
            assert here.ask("/status")[0] == 200
        assert silent[0].recv(1) == b""
