"""Who is answered, and how: this machine, with the token, by GET, and nothing but named pages."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from privrec.show.page import render
from privrec.show.server import Site, page_route
from served import Served, served


def broken(_: Request) -> Response:
    raise RuntimeError("secret detail")


@pytest.fixture(scope="module")
def here() -> Iterator[Served]:
    text = render("privacy.html", title="a page", promise="hello")
    routes = [page_route(path, text, "") for path in ("/", "/other")]
    with served(Site(routes=[*routes, Route("/broken", broken)])) as found:
        yield found


def test_the_token_and_the_name_of_the_machine_open_the_page(here: Served) -> None:
    for host in (f"127.0.0.1:{here.port}", f"localhost:{here.port}"):
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


@pytest.mark.parametrize("path", ["/", "/other", "/none", "/favicon.ico"])
def test_a_wrong_token_is_refused(here: Served, path: str) -> None:
    right = here.site.token
    for token in ("", "x", right[:-1], right + "x", "é"):
        assert here.ask(path, token=token)[0] == 403
        assert here.ask(path, a="1", token=token, b="2")[0] == 403
    status, headers, body = here.ask(path, token=None)
    assert status == 403
    assert "default-src 'none'" in headers["content-security-policy"]
    assert right not in body


@pytest.mark.parametrize(
    "host",
    [
        "[::1]:{port}",
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.0.0.1.nip.io:{port}",
    ],
)
def test_other_names_are_refused_even_with_the_token(here: Served, host: str) -> None:
    assert here.ask("/", host=host.format(port=here.port))[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(here: Served, method: str) -> None:
    status, headers, _ = here.ask("/", method=method)
    assert (status, headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["/../etc/passwd", "//", "/%2e%2e/x", "/other/", "/ledger.jsonl"])
def test_no_path_leads_to_a_file(here: Served, path: str) -> None:
    assert here.ask(path)[0] == 404


def raw(here: Served, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", here.port), timeout=30) as line:
        line.sendall(text.format(host=f"127.0.0.1:{here.port}", token=here.site.token).encode())
        answer = b""
        while more := line.recv(65536):
            answer += more
    return answer


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("nonsense\r\n\r\n", 400),
        ("GET /?token={token} HTTP/1.0\r\n\r\n", 403),
        ("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n", 400),
        ("GET /?token={token} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("GET /" + 9000 * "a", 400),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(
    here: Served, text: str, status: int
) -> None:
    assert raw(here, text).startswith(f"HTTP/1.1 {status} ".encode())


def test_nothing_is_answered_after_a_refusal(here: Served) -> None:
    ask = "GET /other?token={{token}} HTTP/1.1\r\nHost: {host}\r\n\r\n"
    answer = raw(here, ask.format(host="evil.example") + ask.format(host="{{host}}"))
    assert (answer.count(b"HTTP/1.1 "), answer[:13]) == (1, b"HTTP/1.1 403 ")


def test_a_fault_says_nothing_of_itself(here: Served) -> None:
    status, headers, body = here.ask("/broken")
    assert (status, "secret" in body) == (500, False)
    assert headers["x-frame-options"] == "DENY"


@pytest.mark.slow
def test_ctrl_c_ends_the_command_cleanly(tmp_path: Path) -> None:
    code = "from privrec.cli.entry import main; main()"
    command = [sys.executable, "-c", code, "watch", str(tmp_path / "run"), "--json"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as watch:
        assert watch.stdout is not None
        text = ""
        while "}" not in text:
            text += watch.stdout.readline()
        # A page is open: its connection is kept.
        line = http.client.HTTPConnection("127.0.0.1", json.loads(text)["port"], timeout=60)
        line.request("GET", json.loads(text)["url"].partition(str(line.port))[2])
        assert line.getresponse().read()
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=60)
        line.close()
    assert errors == "privrec: the page has ended\n"
    assert watch.returncode == 130
