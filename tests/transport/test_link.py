"""The link on loopback, with TLS and enrolled keys: who gets which request, and what comes back."""

import logging
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from link_nodes import LARGE, LONG, Asked, Cutter, Net, Played, linked, parser, played, until

from privrec.errors import FederationError
from privrec.transport import client
from privrec.transport import link as links
from privrec.transport.paths import FAILED_HEADER, REPLIES

__all__ = ["parser"]


def test_two_nodes_answer_and_an_error_shows_the_name_of_its_class_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    came: list[str] = []
    real = links._Office._reply

    async def reply(self: Any, request: Any) -> Any:
        came.append(f"{request.url} {request.headers}")
        return await real(self, request)

    def handle(request: bytes) -> bytes:
        raise KeyError("a private thing")

    monkeypatch.setattr(links._Office, "_reply", reply)
    with caplog.at_level(logging.INFO), linked(tmp_path, 0) as (net, link):
        net.start(1, handle)
        until(lambda: link.online() == {0, 1})
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}
        assert dict(link.ask({0: b"", 1: b"abc"}, LONG, 3)) == {0: b""}
        assert net.counts["exchanges"] == 2
    assert sum(f"'{FAILED_HEADER}': 'KeyError'" in text for text in came) == 1
    assert "KeyError" in caplog.text
    assert "private" not in caplog.text + "".join(came)
    assert [state for k, state in net.told if k == 0] == [
        "starting",
        "online",
        "offline",
        "stopped",
    ]


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("way", ["down", "up"])
def test_a_line_that_breaks_costs_nothing(way: str, tmp_path: Path) -> None:
    """Neither the first request to a node, nor a reply; and no request is answered twice."""
    asked: list[int] = []

    def handle(request: bytes) -> bytes:
        asked.append(len(request))
        return request[::-1]

    with Net(tmp_path) as net, net.open() as link, Cutter(net.port) as cutter:
        net.start(0, handle, port=cutter.port)
        until(lambda: link.online() == {0})
        cutter.left[way] = 2**20
        assert dict(link.ask({0: LARGE}, LONG, len(LARGE))) == {0: LARGE[::-1]}
        assert cutter.cuts == 1
        assert asked == [len(LARGE)]
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}


def test_a_node_whose_line_breaks_again_and_again_is_soon_back(tmp_path: Path) -> None:
    with Net(tmp_path) as net, net.open() as link, Cutter(net.port) as cutter:
        net.start(0, port=cutter.port)
        for count in range(1, 4):
            until(lambda: net.told.count((0, "online")) == count)  # noqa: B023 (called at once)
            assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}
            cutter.cut()
    waits = [seconds for state, seconds in net.slept if state == "online"]
    assert waits == 3 * [client.FIRST_WAIT]


def test_a_late_reply_that_never_gets_through_does_not_keep_a_node_from_the_next_request(
    tmp_path: Path,
) -> None:
    """A server that does not wait for it any more need not read it to say so."""
    got, late = threading.Event(), threading.Event()

    def handle(request: bytes) -> bytes:
        got.set()
        return request[::-1] if late.wait(LONG) and request == b"abc" else LARGE

    with linked(tmp_path, 1) as (net, link), Cutter(net.port) as cutter:
        net.start(0, handle, port=cutter.port)
        until(lambda: link.online() == {0, 1})
        asked: Any = link.ask({0: b"late", 1: b"abc"}, LONG, len(LARGE))
        assert next(asked) == (1, b"cba")
        assert got.wait(LONG)
        asked.close()
        cutter.left["up"] = cutter.next = 16_000
        late.set()
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}


@pytest.mark.slow
def test_twenty_megabytes_go_both_ways(tmp_path: Path) -> None:
    large = 7 * LARGE
    with linked(tmp_path, 0, 1) as (_, link):
        heard = dict(link.ask({0: large, 1: large}, LONG, len(large)))
        assert heard == dict.fromkeys(range(2), large[::-1])


def test_a_node_that_comes_back_hears_again_what_it_did_not_get(tmp_path: Path) -> None:
    with linked(tmp_path) as (net, link), closing(Played(net, 0)) as node:
        node.enter()
        first = Asked(link, {0: b"first"})
        number, content = node.next()
        assert content == b"first"
        assert node.reply(number, b"1") == 204
        assert first.heard() == {0: b"1"}
        # It is sent to the old stream, which breaks in the middle of it.
        second = Asked(link, {0: LARGE})
        node.begin()
        node.leave()
        node.enter(after=number)
        again, content = node.next()
        assert content == LARGE
        # It got this one: it is not asked again, and its reply is taken.
        node.leave()
        node.enter(after=again)
        assert node.reply(again, b"2") == 204
        assert second.heard() == {0: b"2"}
        third = Asked(link, {0: b"third"})
        last, content = node.next()
        assert (last > again, content) == (True, b"third")
        assert node.reply(last, b"3") == 204
        assert third.heard() == {0: b"3"}
        node.leave()


def test_a_new_program_of_a_node_is_not_asked_what_the_old_one_was(tmp_path: Path) -> None:
    """The old one may have answered already; and nobody else can give its reply."""
    with linked(tmp_path) as (net, link), closing(Played(net, 0)) as old:
        old.enter()
        first = link.ask({0: b"first", 1: b"first"}, LONG, 9)
        number, _ = old.next()
        old.leave()
        with played(net, 0) as [new]:
            second = Asked(link, {0: b"second"})
            assert new.next()[1] == b"second"
            assert old.reply(number, b"1") == 401
            assert new.reply(number, b"1") == 410
            assert new.reply(number + 2, b"2") == 204
            assert second.heard() == {0: b"2"}
        first.close()  # type: ignore[attr-defined]


def test_nodes_go_on_with_a_new_server_on_the_same_port(tmp_path: Path) -> None:
    with Net(tmp_path) as net:
        for _ in range(2):
            with net.open() as link:
                if not net.told:
                    net.start(0)
                    net.start(1)
                until(lambda: link.online() == {0, 1})
                assert dict(link.ask({0: b"abc", 1: b""}, LONG, 3)) == {0: b"cba", 1: b""}
    for k in range(2):
        states = [state for node, state in net.told if node == k]
        assert states[:4] == ["starting", "online", "offline", "online"]


def test_numbers_of_an_older_server_mean_nothing_to_a_new_one(tmp_path: Path) -> None:
    """What a node got last from the old one is no reason to leave out what the new one asks."""
    with Net(tmp_path) as net, closing(Played(net, 0)) as node:
        with net.open() as link:
            node.enter()
            for _ in range(3):
                asked = Asked(link, {0: b"old"})
                before, _ = node.next()
                assert node.reply(before, b"") == 204
                assert asked.heard() == {0: b""}
            node.leave()
        with net.open() as link:
            asked = Asked(link, {0: b"new"})
            node.enter(after=before)
            number, content = node.next()
            assert content == b"new"
            # A reply to the old server is none to the new one.
            assert number > before
            assert node.reply(before, b"") == 410
            assert node.reply(number, b"1") == 204
            assert asked.heard() == {0: b"1"}
            node.leave()


def test_a_node_that_holds_its_stream_and_never_answers_is_missing(tmp_path: Path) -> None:
    with linked(tmp_path, 1) as (net, link), played(net, 0) as [silent]:
        assert link.online() == {0, 1}
        # The other's reply may be as late as it likes; only then the short time begins.
        assert dict(link.ask({1: b"abc"}, LONG, 3)) == {1: b"cba"}
        assert dict(link.ask({0: b"abc"}, 0.1, 3)) == {}
        number, _ = silent.next()
        assert silent.reply(number, b"cba") == 410
        assert link.online() == {0, 1}


def test_the_end_of_a_server_waits_for_no_node(tmp_path: Path) -> None:
    """Streams end, also of a node that does not read what it is sent."""
    with Net(tmp_path) as net, closing(Played(net, 0)) as node, closing(Played(net, 1)) as other:
        with net.open() as link:
            node.enter()
            other.enter()
            asked = link.ask({0: bytes(2**26)}, LONG, 9)
            node.begin()
        assert [number for number, _ in other._frames] == []
        assert "link" not in {thread.name for thread in threading.enumerate()}
        asked.close()  # type: ignore[attr-defined]
        node.leave()
        other.leave()


def test_what_operators_ask_for(tmp_path: Path) -> None:
    with linked(tmp_path, metrics=lambda: "# EOF\n") as (net, _), closing(Played(net, 0)) as anyone:
        assert anyone.get("/healthz").text == "ok\n"
        assert anyone.get("/metrics").text == "# EOF\n"
        for path in ("/", "/v1", "/v1/stream/", "/docs", "/v1/fleet/x", "/v1/replies", "//healthz"):
            assert (path, anyone.post(path).status_code) == (path, 404)
        assert anyone.get("/v1/stream").status_code == 405
        assert anyone.post(f"{REPLIES}/{'9' * 5000}").status_code == 401


def test_a_proxy_never_sees_what_two_programs_of_a_machine_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    with linked(tmp_path, 0) as (net, link):
        assert dict(link.ask({0: b"abc"}, LONG, 3)) == {0: b"cba"}
    for server, uses in {"localhost:1": False, "[::1]:1": False, "server.example:1": True}.items():
        with client._client(server, net.ca) as made:
            assert made.trust_env == uses


def test_two_servers_on_a_port_and_two_nodes_with_a_key_are_refused(tmp_path: Path) -> None:
    with linked(tmp_path) as (net, _), pytest.raises(FederationError, match="already listens on"):
        net.open().__enter__()
    key = Path(f"{net.key(0)}.pub").read_text()
    with (
        pytest.raises(FederationError, match="two nodes have the same public key"),
        links.open_link(tmp_path, [key, f"{key.strip()} a comment\n"], host="127.0.0.1", port=1),
    ):
        pass
    assert not {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.key")} - {0o600}
