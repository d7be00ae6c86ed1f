"""Attacks on a federation that once worked: each test is one of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
import raw
from loopback import Loopback
from privrec.algorithms.privrec_plus.rows import Frequent
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort, check_told
from privrec.data.federation import Federation
from privrec.errors import FederationError, WireError
from privrec.protocol import wire
from privrec.protocol.certificates import read_private_key, sign
from privrec.protocol.coding import SumLayout
from privrec.protocol.secure_sum import _keys_statement, check_keys
from privrec.protocol.server import executor, liars
from privrec.protocol.terms import Member, Terms, phases_of, plan_of, promised
from privrec.testing import small
from privrec.transport.processes import LARGEST_REQUEST, NODES_MAY_CALL, guarded
from privrec.transport.run_node import locked
from tiny import DATA


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def noised(recipe: str, data: Federation, **more: Any) -> Any:
    settings = {**small(recipe), "noise": "secure", "noise_multiplier": 1.0, "epsilon": None}
    return prepare(configure(recipe, data.name, {**settings, **more}), data)


def ask(net: Loopback, node: int, kind: str, attempt: int, **about: Any) -> raw.Message:
    """Ask a node as a hostile server would; return its reply."""
    arrays = about.pop("arrays", None)
    words = {"kind": kind, "terms": net.terms.fingerprint, "run": "", "round": 0, "clip_norm": 1.0}
    words |= about
    request = raw.pack({**words, "attempt": attempt}, arrays)
    reply = net.nodes[node].handle(request)
    return raw.unpack(wire.verified(reply, request, lambda content, made: True))


def unmasks(net: Loopback, attempt: int, helpers: list[int]) -> bool:
    """Return whether a server that asks these nodes alone to reveal gets one more sum."""
    nodes = list(net.nodes)
    keys = {str(n): ask(net, n, "keys", attempt).about["keys"] for n in nodes}
    shares = {n: ask(net, n, "shares", attempt, keys=keys).about["shares"] for n in nodes}
    for node in nodes:
        sealed = {str(other): shares[other][str(node)] for other in nodes if other != node}
        arrays = {"people": np.zeros(0, np.int64)}
        reply = ask(net, node, "mask", attempt, sealed=sealed, clip_norm=1.0, arrays=arrays)
        assert reply.about["kind"] == "mask"
    signed = {
        str(n): ask(net, n, "agree", attempt, survivors=nodes).about["signature"] for n in nodes
    }
    found = [
        ask(net, n, "reveal", attempt, survivors=nodes, confirmations=signed).about["kind"]
        for n in helpers
    ]
    return found == ["reveal"] * len(helpers)


def test_a_server_that_asks_other_nodes_each_time_gets_as_many_sums_as_are_counted(
    data: Federation, tmp_path: Path
) -> None:
    """Any t nodes can take the masks off, so a node's own count is not the number of sums."""
    made = noised("dp-privrec-plus", data)
    net = Loopback(made, tmp_path, nodes=4, noise_from="nodes", missing=0.3)
    needed = net.terms.threshold(4)
    left = dict.fromkeys(range(4), net.terms.reveals)
    sums = 0
    while True:
        helpers = sorted(left, key=lambda node: -left[node])[:needed]
        if any(left[node] == 0 for node in helpers):
            break
        assert unmasks(net, sums, helpers)
        left = {node: left[node] - (node in helpers) for node in left}
        sums += 1
    assert not unmasks(net, sums, list(range(needed)))
    assert net.terms.reveals <= sums <= net.terms.sums


def members(count: int) -> tuple[Member, ...]:
    return tuple(Member(public_key=str(k), people=5) for k in range(count))


@pytest.mark.parametrize(
    ("nodes", "missing", "colluding", "sums"),
    [(4, 0.3, 0.0, 3), (10, 0.3, 0.1, 3), (10, 0.0, 0.0, 2), (20, 0.4, 0.05, 3)],
)
def test_the_number_of_sums_is_by_hand(
    nodes: int, missing: float, colluding: float, sums: int, data: Federation
) -> None:
    terms = Terms(
        name="people",
        settings=noised("dp-privrec-plus", data).task.settings,
        catalogue="",
        members=members(nodes),
        noise_from="nodes",
        missing=missing,
        colluding=colluding,
    )
    # floor(2 (n - c) / (t - c)) with c = 1 and t = n - floor(missing n).
    assert terms.sums == sums
    assert terms.honest == nodes - 1


def test_epsilon_against_the_server_counts_rounds_that_the_budget_does_not_play(
    data: Federation, tmp_path: Path
) -> None:
    more = {"rounds": 40, "epsilon": 5.0, "sampling": "poisson"}
    net = Loopback(noised("dp-privrec-one", data, **more), tmp_path, noise_from="nodes")
    bound = plan_of(net.terms, data.catalogue)
    epsilon, hostile = promised(net.terms, phases_of(bound))
    assert phases_of(bound)[0].rounds == 40
    assert hostile > epsilon > 5.0  # The budget ends the run before its 40 rounds.


def test_a_node_whose_keys_repeat_is_named_and_left_out(data: Federation, tmp_path: Path) -> None:
    net = Loopback(noised("dp-privrec-plus", data), tmp_path, nodes=4, attempts=3)
    reply = ask(net, 0, "keys", 1).about["keys"]
    parts = raw.blobs_by_name(reply)
    with pytest.raises(FederationError, match="repeat each other"):
        check_keys(b"", 0, {**parts, "mask": parts["cipher"]}, lambda *_: True)

    theirs: dict[str, bytes] = {}

    def copies(asked: int, request: bytes, reply: bytes | None) -> bytes | None:
        """Let node 1 present the keys of node 0 as its own."""
        about = raw.unpack(request).about
        if about["kind"] != "keys" or asked > 1 or reply is None:
            return reply
        body = raw.unpack(wire.verified(reply, request, lambda *_: True)).about
        if asked == 0:
            theirs.update(raw.blobs_by_name(body["keys"]))
            return reply
        private = read_private_key(net.paths[1] / "key")
        at = wire.Attempt(about["run"], about["round"], about["attempt"])
        context = wire.round_context(net.terms.fingerprint, at, about["clip_norm"])
        statement = _keys_statement(context, 1, theirs)
        parts = {**theirs, "signature": sign(private, statement)}
        made = raw.pack({**body, "keys": parts})
        return wire.signed(made, request, lambda content: sign(private, content))

    net.tap = copies
    bound = plan_of(net.terms, data.catalogue)
    phase = phases_of(bound)[0]
    state = phase.start(None)
    cohort = Cohort(phase.population, bound.task.federation.take)
    executor(net.server)(phase, phase.tell(state), cohort, 0, state.clip_norm)
    assert net.server.status.refused["a key of another node"] >= 1


def drops(node: int, kind: str, times: int) -> Callable[[int, bytes, bytes | None], bytes | None]:
    """Return a tap that loses some replies of a node."""
    left = [times]

    def tap(asked: int, request: bytes, reply: bytes | None) -> bytes | None:
        hit = asked == node and raw.unpack(request).about["kind"] == kind and left[0] > 0
        left[0] -= hit
        return None if hit else reply

    return tap


@pytest.mark.parametrize("kind", ["keys", "shares", "mask", "reveal"])
def test_one_lost_reply_of_two_nodes_costs_an_attempt_and_not_the_round(
    kind: str, data: Federation, tmp_path: Path
) -> None:
    net = Loopback(noised("dp-privrec-plus", data), tmp_path, nodes=2, tap=drops(1, kind, 1))
    bound = plan_of(net.terms, data.catalogue)
    phase = phases_of(bound)[0]
    state = phase.start(None)
    cohort = Cohort(phase.population, bound.task.federation.take)
    executor(net.server)(phase, phase.tell(state), cohort, 0, state.clip_norm)
    assert net.server.status.abandoned == 1


def test_who_is_left_out_is_a_liar_or_stands_alone_against_one() -> None:
    assert liars({(0, 1), (2, 1), (3, 1)}) == {1}  # All accuse the dealer.
    assert liars({(1, 0), (1, 2), (1, 3)}) == {1}  # One accuses all.
    assert liars({(0, 1)}) == {0, 1}
    assert liars(set()) == set()


def test_weights_whose_powers_vanish_are_refused() -> None:
    """The fourth power of 1e-82 is 0, and a length from it would be too short."""
    told = {"kept": np.arange(3), "power": np.full(3, 5.9e-82), "common": np.zeros(3)}
    with pytest.raises(WireError, match="too large or too small"):
        check_told(told, Frequent.accepts(n_items=3, most=3))


def test_a_plain_count_moves_by_no_more_than_its_people() -> None:
    layout = SumLayout(shapes={"w": ("dense", (3,))}, count_weight=0.1)
    clipped, was_long = layout.clipped(np.array([0.0, 0, 0, -40 * 0.1]), 1.0, 15, "l2")
    assert was_long
    assert clipped[3] == pytest.approx(-7.5 * 0.1)
    clipped, was_long = layout.clipped(np.array([100.0, 100, 100, 0]), 1.0, 15, "l2")
    assert was_long
    assert np.linalg.norm(clipped) == pytest.approx(15.0)
    within = np.array([1.0, 0, 0, 0.7])
    clipped, was_long = layout.clipped(within, 1.0, 15, "l2")
    assert not was_long
    assert np.array_equal(clipped, within)


def test_a_symmetric_sum_is_clipped_by_the_length_of_the_whole_matrix() -> None:
    layout = SumLayout(shapes={"m": ("outer", (2,))})
    clipped, _ = layout.clipped(np.array([3.0, 4.0, 5.0]), 1.0, 1, "l2")
    whole = layout.total(clipped).update["m"]
    assert np.linalg.norm(whole) == pytest.approx(1.0)


def test_a_second_program_on_a_nodes_folder_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(FederationError, match="another program serves")
    with locked(tmp_path), refused, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("said", [True, False])
def test_a_stranger_cannot_send_a_large_request(said: bool) -> None:
    """Neither one that says how long it is, nor one that only goes on."""
    import asyncio

    taken: list[int] = []
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            taken.append(len((await receive())["body"]))

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"content-length", str(LARGEST_REQUEST + 1).encode())] if said else []
    scope = {"type": "http", "path": f"{NODES_MAY_CALL}push-object", "headers": headers}
    call = guarded(app, secret=b"secret")
    if said:
        asyncio.run(call(scope, receive, send))
        assert answers[0]["status"] == 413
        assert taken == []
    else:
        with pytest.raises(ConnectionError):
            asyncio.run(call(scope, receive, send))
        assert sum(taken) <= LARGEST_REQUEST
