"""Hostile nodes against the server: what they send is refused and counted."""

import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raw
from loopback import Loopback, ask, count_attempts, fake_sign, noised
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import told_to_bytes
from privrec.core.phase import Phase
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.privacy.aggregate import CohortTotal
from privrec.privacy.release import seeded
from privrec.protocol import masks, wire
from privrec.protocol.certificates import read_private_key, sign
from privrec.protocol.secure_sum import _keys_statement, check_keys
from privrec.protocol.server import liars
from privrec.testing import small
from privrec.types import F64

PLUS = "dp-privrec-plus"
Body = Callable[[raw.Message, bytes, np.random.Generator], bytes]
"""(a sound reply, its bytes, randomness) -> a body that a hostile node signs."""
Change = Callable[[dict[str, Any]], dict[str, Any]]
"""(the words of a request and of its reply) -> what a hostile node changes in the latter."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def federation(
    data: Federation, path: Path, *, recipe: str = PLUS, fake: bool = True, **terms: Any
) -> Loopback:
    """Return a federation without noise; its signatures cost nothing if they are fake."""
    noise = {"noise": "seeded", "noise_multiplier": 0.0, "epsilon": None}
    if terms.get("noise_from") == "nodes":
        noise = {"noise": "secure", "noise_multiplier": 1e-3, "epsilon": None}
    made = prepare(configure(recipe, data.name, {**small(recipe), **noise}), data)
    return Loopback(made, path, fake=fake, **{"nodes": 3, "missing": 0.0, **terms})


def phase_of(net: Loopback, number: int = 0) -> Phase:
    [phase] = [one for one in net.run().stages() if one.first == number]
    assert isinstance(phase, Phase)
    return phase


def flat(total: CohortTotal) -> F64:
    return np.concatenate([np.ravel(total.update[name]) for name in sorted(total.update)])


def sums_of(net: Loopback, path: Path) -> dict[int, F64]:
    """Return what each node alone adds to the sum."""
    plain = Loopback(net.prepared, path, nodes=len(net.nodes), secure_sum=False)
    return {k: flat(plain.play(np.array(net.terms.positions(k)))) for k in net.nodes}


def with_words(message: raw.Message, words: str) -> bytes:
    """Return a message whose words are this text."""
    return told_to_bytes({**message.arrays, "about": np.frombuffer(words.encode(), np.uint8)})


def about(**changed: Any) -> Body:
    return lambda good, body, rng: raw.pack({**good.about, **changed}, good.arrays)


def array(change: Callable[[Any], Any]) -> Body:
    return lambda good, body, rng: raw.pack(
        good.about, {name: change(one) for name, one in good.arrays.items()}
    )


def header(change: Callable[[dict[str, Any]], Any]) -> Body:
    """Return a body with another header of safetensors."""

    def made(good: raw.Message, body: bytes, rng: np.random.Generator) -> bytes:
        size = int.from_bytes(body[:8], "little")
        words = json.dumps(change(json.loads(body[8 : 8 + size]))).encode()
        return struct.pack("<Q", len(words)) + words + body[8 + size :]

    return made


def claims(**claim: Any) -> Body:
    return header(lambda found: {name: {**entry, **claim} for name, entry in found.items()})


STRUCTURE: dict[str, Body] = {
    "nothing": lambda good, body, rng: b"",
    "noise": lambda good, body, rng: rng.bytes(int(rng.integers(1, 400))),
    "cut off": lambda good, body, rng: body[: int(rng.integers(0, len(body)))],
    "twice": lambda good, body, rng: body + body,
    "longer": lambda good, body, rng: body + rng.bytes(int(rng.integers(1, 9))),
    "huge header": lambda good, body, rng: struct.pack("<Q", 2**63 - 1) + body[8:],
    "shifted header": lambda good, body, rng: (
        struct.pack("<Q", int.from_bytes(body[:8], "little") + int(rng.integers(1, 99))) + body[8:]
    ),
    "huge shape": claims(shape=[2**62, 2**62]),
    "no shape": claims(shape=[0, 2**63]),
    "huge offsets": claims(data_offsets=[0, 2**62]),
    "backward offsets": claims(data_offsets=[8, 0]),
    "unknown numbers": claims(dtype="F8_E4M3"),
    "brain numbers": claims(dtype="BF16"),
    "no words": header(lambda found: {}),
    "words are no text": lambda good, body, rng: told_to_bytes(
        {"about": np.frombuffer(b"{\xff\xfe}", np.uint8)}
    ),
    "words are a list": lambda good, body, rng: with_words(good, "[1, 2]"),
    "deep words": lambda good, body, rng: with_words(good, "[" * 5000 + "]" * 5000),
    "deep object": lambda good, body, rng: with_words(good, '{"kind":' * 900 + "1" + "}" * 900),
    "huge integer": lambda good, body, rng: with_words(good, f'{{"round": {"9" * 5000}}}'),
    "another kind": about(kind="hello"),
    "a list as kind": about(kind=["sum"] * 9),
    "another run": about(run="0123456789abcdef"),
    "another round": about(round=1),
    "a huge round": about(round=10**300),
    "another attempt": about(attempt=1),
    "attempt is text": about(attempt="1"),
    "refused": about(kind="refused", why="\n\x1b[2Jno" * 100),
    "refused, deep why": lambda good, body, rng: with_words(
        good, '{"kind": "refused", "why": ' + "[" * 900 + "]" * 900 + "}"
    ),
    "refused, odd blame": about(kind="refused", blames=[10**30, "x"]),
    "refused, unknown blame": about(kind="refused", blames=10**30),
    "too many bytes": lambda good, body, rng: raw.pack(
        good.about, {**good.arrays, "more": np.zeros(40_000)}
    ),
}
"""What never is a reply to a question; another one may come after it."""
NUMBERS: dict[str, Body] = {
    "no array": lambda good, body, rng: raw.pack(good.about),
    "another name": lambda good, body, rng: raw.pack(
        good.about, {f"{name}s": row for name, row in good.arrays.items()}
    ),
    "short": array(lambda found: found[:-1]),
    "empty": array(lambda found: found[:0]),
    "long": array(lambda found: np.concatenate([found, found])),
    "a row": array(lambda found: found[None]),
    "a number": array(lambda found: found[0]),
    "halves": array(lambda found: found.astype(np.float16)),
    "booleans": array(lambda found: found.astype(np.bool_)),
    "bytes": array(lambda found: found.view(np.uint8)),
    "no number": array(lambda found: np.where(np.arange(len(found)) == 3, np.nan, found)),
    "infinite": array(lambda found: np.where(np.arange(len(found)) == 3, np.inf, found)),
}
"""A reply, but no sum: the node has had its chance."""


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    """Return the content with some bits flipped, at least one."""
    found = bytearray(content)
    for place in set(rng.integers(0, len(found), int(rng.integers(1, 6))).tolist()):
        found[place] ^= int(rng.integers(1, 256))
    return bytes(found)


@pytest.mark.parametrize(
    ("terms", "steps", "rounds", "fake"),
    [
        ({"secure_sum": False}, 1, 30, True),
        ({}, 4, 3, True),
        ({"noise_from": "nodes"}, 5, 2, False),
        pytest.param({"secure_sum": False}, 1, 960, True, marks=pytest.mark.slow),
        pytest.param({}, 4, 120, True, marks=pytest.mark.slow),
    ],
)
def test_malformed_replies_are_refused_and_counted(
    terms: Any, steps: int, rounds: int, fake: bool, data: Federation, tmp_path: Path
) -> None:
    """Some 75 for each step of a round, 100,000 in all; the sum is that without them."""
    net = federation(data, tmp_path / "net", fake=fake, **terms)
    rng, key = np.random.default_rng(rounds), read_private_key(net.paths[0] / "key")
    own = fake_sign(0) if fake else lambda text: sign(key, text)
    truth, sent, kinds, old = sum(sums_of(net, tmp_path / "a").values()), 0, set[str](), [b""]

    def craft(request: bytes, good: bytes) -> Iterator[tuple[int, bytes]]:
        words, arrays = raw.unpack(raw.body_of(good))
        kinds.add(words["kind"])
        # Another sum, so that one that is taken for the node's own is seen.
        body = raw.pack(words, {name: one + one for name, one in arrays.items()})
        parsed = raw.unpack(body)
        made = [wire.signed(make(parsed, body, rng), request, own) for make in STRUCTURE.values()]
        made += [flipped(good, rng) for _ in range(25)]
        made += [good[: int(rng.integers(0, len(good)))] for _ in range(5)]
        made += [rng.bytes(int(rng.integers(0, 300))) for _ in range(3)]
        # Not signed, signed by another node, for another request, and of an earlier step.
        made += [body, b"\0\0" + body, b"\xff\xff" + body, wire.signed(body, request, fake_sign(1))]
        made += [wire.signed(body, request + b"x", own), old[-1]]
        old.append(good)
        return iter([*((0, one) for one in made), (1, good), (7, good), (-1, good)])

    def ask(
        requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        nonlocal sent
        for node, good in net.ask(requests, deadline, most):
            crafted = [*craft(requests[0], good)] if node == 0 else []
            # The honest reply comes after them, and then once more.
            sent += len(crafted) + (node == 0)
            yield from [*crafted, (node, good)] + [(node, good)] * (node == 0)

    net.server = server = replace(net.server, ask=ask)
    for _ in range(rounds):
        total = flat(net.play())
        np.testing.assert_allclose(total, truth, atol=0.1 if steps == 5 else 1e-6)
    assert sum(server.status.refused.values()) == sent > 70 * rounds * len(kinds)
    assert (len(kinds), server.status.abandoned) == (steps, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_signed_reply_moves_the_sum_by_more_than_its_peoples_bounds(
    rounds: int, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong numbers are refused; where bits are flipped, they are that or within the bounds.

    All is a function of `rounds`: where a bit is flipped depends on the length of a reply.
    """
    count_attempts(monkeypatch)
    net = federation(data, tmp_path / "net", secure_sum=False)
    rng, people = np.random.default_rng(rounds), net.terms.members[0].people
    others = flat(net.play(net.everybody()[people:]))
    wrong, moved, seen = list(NUMBERS.values()), list[float](), net.server.status

    def tap(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        if node or reply is None:
            return reply
        body, at = raw.body_of(reply), len(moved)
        bodies = [*wrong, array(lambda found: found + 1e6)]
        bad = bodies[at](raw.unpack(body), body, rng) if at < len(bodies) else flipped(body, rng)
        return wire.signed(bad, request, fake_sign(0))

    net.tap = tap
    for _ in range(rounds):
        before = sum(seen.refused.values())
        # A sum of huge numbers is shortened to nothing, with an overflow on the way.
        with np.errstate(over="ignore"):
            moved.append(float(np.linalg.norm(flat(net.play()) - others)))
        assert moved[-1] or sum(seen.refused.values()) == before + 1
    assert not any(moved[: len(wrong)])
    assert max(moved) <= phase_of(net).aggregator.clip_norm * people * (1 + 1e-6)
    assert 0 < sum(length == 0 for length in moved[len(wrong) :]) < rounds - len(wrong)
    # One of them for sure; of the flipped bits, few make a number huge.
    assert moved[len(wrong)]
    assert seen.refused["a sum was longer than its people's bounds"]


@pytest.mark.parametrize("recipe", [PLUS, "lm-privrec"])
@pytest.mark.parametrize("value", [30.0, 1e7, 1e200, 1e308])
def test_a_long_sum_moves_what_is_published_by_its_peoples_bounds_at_most(
    recipe: str, value: float, data: Federation, tmp_path: Path
) -> None:
    net = federation(data, tmp_path / "net", recipe=recipe, secure_sum=False)
    phase, people = phase_of(net), net.terms.members[0].people
    clean = flat(net.play(net.everybody()[people:]))

    def tap(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        if node or reply is None:
            return reply
        words = raw.unpack(raw.body_of(reply))
        long = {name: np.full(row.shape, value) for name, row in words.arrays.items()}
        return wire.signed(raw.pack(words.about, long), request, fake_sign(0))

    net.tap = tap
    with np.errstate(over="ignore"):
        total = net.play()
    clip, noise = phase.aggregator.clip_norm, seeded(np.random.default_rng(0))
    published = phase.aggregator.publish_round(total, clip, noise)
    moved = flat(total._replace(update=published.update)) - clean
    length = np.linalg.norm(moved, 1 if phase.aggregator.norm == "l1" else 2)
    assert length <= clip * people * (1 + 1e-6)
    # Numbers whose length overflows count as nothing.
    assert length > clip * people * 0.99 or value > 1e100
    assert net.server.status.refused == {"a sum was longer than its people's bounds": 1}


def box(of: str, holders: set[str] | None = None) -> Change:
    """Return a dealer of boxes that cannot be opened, or a node that reveals wrong shares."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        wrong = {k: one[:-1] + ("0" if one[-1] != "0" else "1") for k, one in found[of].items()}
        kept = {k for k in wrong if k == "1" or (holders and k not in holders)}
        return {of: {k: found[of][k] if k in kept else wrong[k] for k in wrong}}

    return change


def low_order(point: str) -> Change:
    def change(found: dict[str, Any]) -> dict[str, Any]:
        at = wire.Attempt(found["run"], 0, found["attempt"])
        context = wire.round_context(found["terms"], at, found["clip_norm"])
        keys = {**raw.blobs_by_name(found["keys"]), "mask": bytes.fromhex(point)}
        return {"keys": {**keys, "signature": fake_sign(1)(_keys_statement(context, 1, keys))}}

    return change


def always(**changed: Any) -> Change:
    return lambda found: changed


ORDER_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
OTHERS, ALL = (0, 2, 3, 4), (0, 1, 2, 3, 4)
SPOILERS: dict[str, tuple[str, float, Change, tuple[int, ...]]] = {
    # What it is -> the step, the share that may be missing, what changes, and whose sum it is.
    "one box": ("shares", 0.3, box("shares", {"3"}), (0, 1, 2, 4)),
    "one box, nobody may miss": ("shares", 0.0, box("shares", {"3"}), (0, 2, 4)),
    "boxes of strangers": ("shares", 0.3, always(shares={"1": "00", "99": "00"}), OTHERS),
    "boxes that are numbers": ("shares", 0.3, always(shares={"0": 1, "x": 2}), OTHERS),
    "no keys": ("keys", 0.3, always(keys=[]), OTHERS),
    "the zero point": ("keys", 0.3, low_order("00" * 32), OTHERS),
    "a point of order 8": ("keys", 0.3, low_order(ORDER_8), OTHERS),
    "refuses to reveal": ("reveal", 0.3, always(kind="refused", why="no"), ALL),
    "reveals wrong shares": ("reveal", 0.3, box("shares", set("0234")), ALL),
    "reveals nonsense": ("reveal", 0.3, always(shares={"0": "", "1": "ff" * 999}), ALL),
    "blames 3": ("mask", 0.3, always(kind="refused", why="", blames=3), OTHERS),
    "blames 3, nobody may miss": ("mask", 0.0, always(kind="refused", blames=3), (0, 2, 4)),
    "blames 3 at once": ("keys", 0.0, always(kind="refused", blames=3), OTHERS),
}


@pytest.mark.parametrize(
    ("step", "missing", "change", "whose"),
    [
        *(pytest.param(*spoiler, id=name) for name, spoiler in SPOILERS.items()),
        pytest.param("shares", 0.3, box("shares"), OTHERS),
    ],
)
def test_a_node_that_spoils_a_secure_sum_costs_itself_and_one_other_at_most(
    step: str, missing: float, change: Change, whose: Any, data: Federation, tmp_path: Path
) -> None:
    net = federation(data, tmp_path / "net", nodes=5, missing=missing)

    def tap(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        found = raw.unpack(raw.body_of(reply or b""))
        if node != 1 or found.about["kind"] != step:
            return reply
        changed = change({**raw.unpack(request).about, **found.about})
        if "signature" in changed.get("keys", {}) and (current := net.nodes[1]._round):
            current._advertised = changed["keys"]
        return wire.signed(raw.pack({**found.about, **changed}), request, fake_sign(1))

    net.tap = tap
    total, alone = flat(net.play()), sums_of(net, tmp_path / "alone")
    np.testing.assert_allclose(total, sum(alone[node] for node in whose), atol=1e-6)
    assert net.server.status.abandoned <= 1
    assert sum(net.server.status.refused.values()) > 0 or step == "reveal"


def test_a_node_whose_shares_do_not_fit_together_can_stop_a_round_and_is_named(
    data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have helped with the sum with it: one without it would show what it added."""
    net = federation(data, tmp_path / "net", nodes=5, missing=0.3)
    split = masks.split
    honest: Callable[[bytes], bytes] = net.nodes[1].handle

    def handle(request: bytes) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(masks, "split", lambda secret, t, n: split(bytes(32), t, n))
            return honest(request)

    monkeypatch.setattr(net.nodes[1], "handle", handle)
    with pytest.raises(FederationError, match="shares of node 1 do not fit together"):
        net.play()
    assert net.server.status.abandoned == net.terms.attempts


def test_a_round_needs_half_of_the_drawn_people_rounded_up(
    data: Federation, tmp_path: Path
) -> None:
    prepared = noised("dp-privrec-plus", data)
    net = Loopback(prepared, tmp_path, secure_sum=False, deadline=0.1, attempts=1)
    three = net.terms.firsts.copy()  # One person of each node.
    del net.nodes[2]
    net.play(three)
    del net.nodes[1]
    with pytest.raises(FederationError, match="1 of 3 people are in the sum; 2 are needed"):
        net.play(three)


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
    net.play()
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
    net.play()
    assert net.server.status.abandoned == 1


def test_who_is_left_out_is_a_liar_or_stands_alone_against_one() -> None:
    assert liars({(0, 1), (2, 1), (3, 1)}) == {1}  # All accuse the dealer.
    assert liars({(1, 0), (1, 2), (1, 3)}) == {1}  # One accuses all.
    assert liars({(0, 1)}) == {0, 1}
    assert liars(set()) == set()
