"""What a hostile server asks of a node, so as to get a sum with less noise, or without masks."""

import contextlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raw
from loopback import Loopback, ask, noised
from privrec.algorithms.privrec_plus.rows import Frequent
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort, Phase, check_told
from privrec.data.federation import Federation
from privrec.errors import FederationError, WireError
from privrec.protocol import masks, wire
from privrec.protocol.server import executor
from privrec.testing import small

NOISE: dict[str, Any] = {"noise": "secure", "noise_multiplier": 1.0, "epsilon": None}


def prepared_for(recipe: str, data: Federation, **more: Any) -> Plan:
    settings = {**small(recipe, cohort=40, stage1_cohort=40, **NOISE), **more}
    return prepare(configure(recipe, data.name, settings), data)


Change = Callable[[raw.Message], bytes]


def body_of(content: bytes) -> raw.Message:
    return raw.unpack(raw.body_of(content))


def says(**changed: Any) -> Change:
    return lambda asked: raw.pack({**asked.about, **changed}, asked.arrays)


def asks_for(change: Callable[[Any], Any]) -> Change:
    """Return a request in which the bits of the drawn people are changed."""
    return lambda asked: raw.pack(
        asked.about, {**asked.arrays, "drawn": np.asarray(change(asked.arrays["drawn"]))}
    )


def keys_of(*nodes: int, strange: bool = False) -> Change:
    def change(asked: raw.Message) -> bytes:
        found = asked.about["keys"]
        made = {name: f"{place}9" * 32 for place, name in enumerate(masks.ADVERTISED)}
        more = {"9": {**found["3"], **made}} if strange else {}
        return raw.pack({**asked.about, "keys": {str(k): found[str(k)] for k in nodes} | more})

    return change


def without(asked: raw.Message, name: str) -> dict[str, Any]:
    return {other: array for other, array in asked.arrays.items() if other != name}


def other_told(asked: raw.Message) -> bytes:
    table = {f"{wire.TOLD}embed/item": np.zeros((40, 4), np.float32)}
    return raw.pack(asked.about, {"drawn": asked.arrays["drawn"], **table})


def one_for_all(asked: raw.Message) -> bytes:
    found = asked.about["confirmations"]
    return raw.pack({**asked.about, "confirmations": dict.fromkeys(found, found["0"])})


HOSTILE: dict[str, tuple[str, Change, str]] = {
    "people of another node": ("mask", asks_for(lambda bits: bits | 255), "does not serve"),
    "more people": ("mask", asks_for(lambda bits: np.append(bits, bits)), "a bit for each person"),
    "fewer people": ("mask", asks_for(lambda bits: bits[1:]), "a bit for each person"),
    "people in rows": ("mask", asks_for(lambda bits: bits[None]), "a bit for each person"),
    "people as numbers": ("mask", asks_for(lambda bits: [0]), "a bit for each person"),
    "people as fractions": ("mask", asks_for(lambda bits: bits / 2), "a bit for each person"),
    "no people": ("mask", lambda m: raw.pack(m.about, without(m, "drawn")), "a bit for each"),
    "another bound": ("mask", says(clip_norm=1e3), "another bound"),
    "no bound": ("mask", says(clip_norm=math.inf), "another bound"),
    "what another recipe tells": ("mask", other_told, "does not fit"),
    "nothing told": ("mask", lambda m: raw.pack(m.about, {"drawn": m.arrays["drawn"]}), "fit"),
    "no boxes": ("mask", says(sealed={}), "are needed"),
    "a plain sum": ("mask", says(kind="sum"), "a plain one is not given"),
    "another attempt": ("mask", says(attempt=5), "not in that attempt"),
    "another run": ("mask", says(run="x"), "not in that attempt"),
    "a round after the last": ("keys", says(round=99), "no round 99"),
    "other terms": ("keys", says(terms="x"), "other terms"),
    "keys of a stranger": (
        "shares",
        keys_of(0, 1, 2, 3, strange=True),
        "too few to hide",
    ),
    "keys of a stranger, not of all": (
        "shares",
        keys_of(0, 1, 2, strange=True),
        "node 9 is not valid",
    ),
    "two members": ("shares", keys_of(0, 1), "too few"),
    "keys without its own": ("shares", keys_of(1, 2, 3), "other keys of this node"),
    "few survivors": ("agree", says(survivors=[0, 1]), "are needed"),
    "a stranger survives": ("agree", says(survivors=[0, 1, 2, 9]), "no member"),
    "it did not survive": ("agree", says(survivors=[1, 2, 3]), "not among the survivors"),
    "another list at the end": ("reveal", says(survivors=[0, 1, 2]), "agreed on another list"),
    "nobody confirms": ("reveal", says(confirmations={}), "0 nodes confirm"),
    "one confirms for all": ("reveal", one_for_all, "1 nodes confirm"),
    "confirmed by name": ("reveal", says(confirmations={"x": "y"}), "`confirmations"),
}


def four(data: Federation, path: Path, **terms: Any) -> Loopback:
    return Loopback(
        prepared_for("dp-privrec-plus", data),
        path,
        **{"nodes": 4, "noise_from": "nodes", "missing": 0.25, "attempts": 1, **terms},
    )


def pry(net: Loopback, step: str, change: Change, patch: pytest.MonkeyPatch) -> raw.Message:
    """Play a round in which node 0 is asked something else in one step; return its reply."""
    honest, found = net.nodes[0].handle, list[raw.Message]()

    def handle(request: bytes) -> bytes:
        asked = raw.unpack(request)
        reply: bytes = honest(change(asked) if asked.about["kind"] == step else request)
        if asked.about["kind"] == step:
            found.append(body_of(reply))
        return reply

    patch.setattr(net.nodes[0], "handle", handle)
    with contextlib.suppress(FederationError):
        net.play(number=1)
    return found[0]


@pytest.mark.parametrize(("step", "change", "why"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_node_refuses_what_breaks_the_terms(
    step: str,
    change: Change,
    why: str,
    data: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = pry(four(data, tmp_path), step, change, monkeypatch)
    assert reply.about["kind"] == "refused"
    assert re.search(why, reply.about["why"]), reply.about
    assert reply.about.keys() == {"kind", "why"}
    assert not reply.arrays


def test_a_round_is_revealed_a_few_times_only_also_after_a_restart(
    data: Federation, tmp_path: Path
) -> None:
    """Each sum has fresh noise, and the mean of many sums would have little."""
    net, asked = four(data, tmp_path, reveals=2), list[bytes]()

    def tap(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        asked.extend([request] * (raw.unpack(request).about["kind"] == "reveal" and node == 0))
        return reply

    net.tap = tap
    for _ in range(2):
        assert net.play(number=1).noised
        again = body_of(net.nodes[0].handle(asked[-1]))
        assert again.about["why"] == "this node is not in that attempt of that round"
        net.nodes = {node: net.node(node) for node in net.nodes}
        net.server = net.new_server()
    with pytest.raises(FederationError, match="nothing of it was published"):
        net.play(number=1)
    [why] = net.server.status.refused
    assert "round 1 was answered 2 times already" in why


ADAPTIVE: dict[str, Any] = {"rounds": 2, "clip_norm": 1.0, "clip_quantile": 0.5}


@pytest.mark.parametrize("step", ["keys", "mask"])
@pytest.mark.parametrize("factor", [1e-28, 1e28, 0.75])
def test_no_node_gets_an_adaptive_bound_of_its_own(
    factor: float, step: str, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other units of the coding on other nodes, the sum has less noise than is counted.

    In squares of a tiny bound, a contribution that is far too long has the length 0.
    """
    made = prepared_for("dp-privrec-one", data, **ADAPTIVE)
    net = Loopback(made, tmp_path, nodes=4, noise_from="nodes", missing=0.0, attempts=1)
    [phase] = net.run().stages()
    assert isinstance(phase, Phase)
    state = phase.start(None)
    honest, found = net.nodes[0].handle, list[raw.Message]()

    def handle(request: bytes) -> bytes:
        asked = raw.unpack(request)
        if step == "mask" and asked.about["kind"] != "mask":
            return honest(request)
        changed = {**asked.about, "clip_norm": factor * asked.about["clip_norm"]}
        reply: bytes = honest(raw.pack(changed, asked.arrays))
        found.append(body_of(reply))
        return reply

    monkeypatch.setattr(net.nodes[0], "handle", handle)
    cohort = Cohort(net.everybody(), net.run().task.federation.take)
    with pytest.raises(FederationError, match="nothing of it was published"):
        executor(net.server)(phase, phase.tell(state), cohort, 0, state.clip_norm)
    kinds = [reply.about["kind"] for reply in found]
    assert "mask" not in kinds
    if step == "mask" or factor != 0.75:
        assert kinds[0] == "refused"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_coarse_numbers_do_not_make_a_contribution_longer_than_its_bound(
    data: Federation, tmp_path: Path
) -> None:
    clip = 1e-7
    made = prepared_for("dp-privrec-one", data, clip_norm=clip)
    net = Loopback(made, tmp_path, secure_sum=False)
    [phase] = net.run().stages()
    assert isinstance(phase, Phase)
    told = phase.tell(phase.start(None))
    coarse = {f"{wire.TOLD}{name}": np.asarray(one, np.float16) for name, one in told.items()}
    words = {"kind": "sum", "terms": net.terms.fingerprint, "run": "", "round": 0, "attempt": 0}
    for person in range(6):
        arrays = {**coarse, **wire.drawn(np.array([person]), net.terms.positions(0))}
        reply = body_of(net.nodes[0].handle(raw.pack({**words, "clip_norm": clip}, arrays)))
        assert reply.about["kind"] == "refused"


def unmasks(net: Loopback, attempt: int, helpers: list[int]) -> bool:
    """Return whether a server that asks these nodes alone to reveal gets one more sum."""
    nodes = list(net.nodes)
    keys = {str(n): ask(net, n, "keys", attempt).about["keys"] for n in nodes}
    shares = {n: ask(net, n, "shares", attempt, keys=keys).about["shares"] for n in nodes}
    for node in nodes:
        sealed = {str(other): shares[other][str(node)] for other in nodes if other != node}
        arrays = wire.drawn(np.zeros(0, np.int64), net.terms.positions(node))
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


def test_weights_whose_powers_vanish_are_refused() -> None:
    """The fourth power of 1e-82 is 0, and a length from it would be too short."""
    told = {"kept": np.arange(3), "power": np.full(3, 5.9e-82), "common": np.zeros(3)}
    with pytest.raises(WireError, match="too large or too small"):
        check_told(told, Frequent.accepts(n_items=3, most=3))
