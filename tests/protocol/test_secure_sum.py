"""Secure sums: exact whoever drops out, no vector visible, and no lie of a server or node helps."""

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privrec.errors import FederationError, SettingsError
from privrec.protocol import masks
from privrec.protocol.masks import Roster, Words, default_degree, neighbours
from privrec.protocol.secure_sum import (
    NodeRound,
    _survivors_statement,
    check_shares,
    route,
    unmask,
)

CONTEXT = b"federation, run, round 3, attempt 1"


def sign_as(node: int, secret: bytes = b"lasting key of ") -> Callable[[bytes], bytes]:
    return lambda message: hmac.digest(secret + str(node).encode(), message, "sha256")


def verify(node: int, message: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(sign_as(node)(message), signature)


def new_node(me: int, context: bytes = CONTEXT) -> NodeRound:
    return NodeRound(me=me, context=context, sign=sign_as(me), verify=verify)


@dataclass
class Play:
    """All nodes and a server in one process; each method is one step for some of the nodes."""

    count: int
    threshold: int
    degree: int = 1000
    size: int = 5
    nodes: dict[int, NodeRound] = field(default_factory=dict)
    masked: dict[int, Words] = field(default_factory=dict)
    sealed_by: dict[int, dict[int, bytes]] = field(default_factory=dict)
    revealed: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Numbers with gaps, so that a number is never by accident a place.
        self.nodes = {10 + 3 * k: new_node(10 + 3 * k) for k in range(self.count)}
        rng = np.random.default_rng(self.count)
        self.vectors = {me: rng.integers(0, 2**64, self.size, dtype=np.uint64) for me in self.nodes}
        self.keys = {me: node.keys() for me, node in self.nodes.items()}
        self.roster = Roster.of(
            self.keys, context=CONTEXT, threshold=self.threshold, degree=self.degree
        )

    def share(self, who: Iterable[int] | None = None) -> "Play":
        for me in self.nodes if who is None else who:
            self.sealed_by[me] = self.nodes[me].shares(
                self.keys, threshold=self.threshold, degree=self.degree
            )
        return self

    def mask(self, who: Iterable[int] | None = None) -> "Play":
        inbox = route(self.roster, self.sealed_by)
        for me in list(self.sealed_by) if who is None else who:
            self.nodes[me].accept(inbox[me])
            self.masked[me] = self.nodes[me].mask(self.vectors[me])
        return self

    @property
    def survivors(self) -> list[int]:
        return list(self.masked)

    def reveal(self, who: Iterable[int] | None = None, *, confirmed: bool = True) -> "Play":
        agreed = None
        if confirmed:
            agreed = {me: self.nodes[me].agree_on(self.survivors) for me in self.masked}
        for me in list(self.masked) if who is None else who:
            self.revealed[me] = self.nodes[me].reveal(self.survivors, agreed)
        return self

    def unmask(self) -> Words:
        return unmask(
            self.roster,
            self.total(self.masked),
            survivors=self.survivors,
            sealed_by=self.sealed_by,
            revealed=self.revealed,
        )

    def total(self, vectors: Mapping[int, Words]) -> Words:
        return sum((vectors[me] for me in self.masked), np.zeros(self.size, np.uint64))

    def exact(self) -> bool:
        return np.array_equal(self.unmask(), self.total(self.vectors))


@settings(max_examples=60)
@given(data=st.data(), count=st.integers(2, 12), confirmed=st.booleans())
def test_the_sum_is_exact_whoever_drops_out_or_there_is_none(
    data: st.DataObject, count: int, confirmed: bool
) -> None:
    """Each node drops out before shares, mask or reveal, or stays; too few must raise."""
    threshold = data.draw(st.integers(count // 2 + 1, count), "threshold")
    stay = st.sampled_from([3, 3, 3, 3, 2, 1, 0])
    until = data.draw(st.lists(stay, min_size=count, max_size=count), "until")
    play = Play(count, threshold)
    stops = list(zip(play.nodes, until, strict=True))
    alive = [[me for me, stop in stops if stop >= k] for k in (1, 2, 3)]
    play.share(alive[0])
    if len(alive[0]) < threshold:
        if alive[1]:
            with pytest.raises(FederationError, match="are needed"):
                play.mask(alive[1])
        return
    play.mask(alive[1])
    if len(alive[1]) < threshold:
        if alive[1]:
            with pytest.raises(FederationError, match="are needed"):
                play.reveal(confirmed=confirmed)
        return
    play.reveal(alive[2], confirmed=confirmed)
    if len(alive[2]) < threshold:
        with pytest.raises(FederationError, match="masks of node"):
            play.unmask()
        return
    assert play.exact()


@pytest.mark.parametrize("dropped", [[], [4, 11, 12, 13], [0, 1, 20, 39]])
def test_forty_nodes_with_ten_neighbours_each(dropped: Sequence[int]) -> None:
    play = Play(40, 24, degree=10)
    assert {len(near) for near in play.roster.neighbours.values()} == {10}
    assert {play.roster.needed(me) for me in play.nodes} == {7}
    play.share()
    play.mask([me for k, me in enumerate(play.nodes) if k not in dropped])
    assert play.reveal().exact()


def test_masked_vectors_look_random() -> None:
    """A missing mask, a mask used twice or a bias would leave a pattern in zeros.

    The tests together fail by chance less than once in 10^6 runs.
    """
    play = Play(5, 3, size=20_000)
    play.vectors = {me: np.zeros(play.size, np.uint64) for me in play.nodes}
    play.share().mask()
    seen = list(play.masked.values())[:-1]
    sums = [np.sum(seen, axis=0, dtype=np.uint64), sum(play.masked.values())]
    looks = [*seen, *sums, seen[0] - seen[1], seen[0] + seen[1]]
    for words in looks:
        counted = np.bincount(np.asarray(words).view(np.uint8), minlength=256)
        assert stats.chisquare(counted).pvalue > 1e-8


@pytest.mark.parametrize("node", [10, 28])
def test_one_share_less_than_needed_gives_nothing(node: int) -> None:
    """Neither of the seed of a survivor nor of the mask key of the last node, which dropped out."""
    play = Play(7, 5).share().mask([10, 13, 16, 19, 22, 25]).reveal()
    givers = [me for me in play.revealed if node in play.revealed[me]]
    for me in givers[4:]:
        del play.revealed[me][node]
    with pytest.raises(FederationError, match=f"masks of node {node} remain: 4 shares"):
        play.unmask()


def test_a_node_gives_one_kind_of_share_of_each_node_and_only_once() -> None:
    play = Play(6, 4).share()
    stayed = list(play.nodes)[:5]
    play.mask(stayed).reveal()
    for given_by in play.revealed.values():
        kinds = {node: share[:1] for node, share in given_by.items()}
        assert kinds == {node: b"s" if node in stayed else b"k" for node in play.nodes}
    with pytest.raises(FederationError, match="`reveal` cannot come after `reveal`"):
        play.nodes[10].reveal(stayed, None)


def test_steps_come_once_and_in_order() -> None:
    play = Play(3, 2)
    node = play.nodes[10]
    with pytest.raises(FederationError, match="`mask` cannot come after `keys`"):
        node.mask(np.zeros(5, np.uint64))
    again: dict[str, Callable[[], Any]] = {
        "keys": node.keys,
        "shares": lambda: node.shares(play.keys, threshold=2, degree=9),
        "mask": lambda: node.mask(np.zeros(5, np.uint64)),
        "agree_on": lambda: node.agree_on(play.survivors),
    }
    first: list[Callable[[], Any]] = [lambda: None, play.share, play.mask, again["agree_on"]]
    for step, (name, call) in zip(first, again.items(), strict=True):
        step()
        with pytest.raises(FederationError, match=f"`{name}` cannot come after `{name}`"):
            call()
    # Else a server could try lists until one is accepted.
    with pytest.raises(FederationError, match="not among the survivors"):
        play.nodes[13].agree_on([10, 16])
    with pytest.raises(FederationError, match="after `a failed agree_on`"):
        play.nodes[13].agree_on(play.survivors)


FORGED = {
    "made and signed by the server": lambda play: NodeRound(
        me=13, context=CONTEXT, sign=sign_as(13, b"server"), verify=verify
    ).keys(),
    "of another round": lambda play: new_node(13, b"federation, run, round 2, attempt 1").keys(),
    "of another node": lambda play: new_node(99).keys(),
    "one key changed": lambda play: {**play.keys[13], "mask": masks.new_keys().public},
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_forged_and_foreign_keys_are_refused(forge: Callable[[Play], dict[str, bytes]]) -> None:
    play = Play(4, 3)
    play.keys[13] = forge(play)
    with pytest.raises(FederationError, match="signature of node 13 is not valid"):
        play.nodes[10].shares(play.keys, threshold=3, degree=9)


def test_doubled_keys_wrong_own_ones_and_low_thresholds_are_refused() -> None:
    play = Play(4, 3)
    with pytest.raises(FederationError, match="same one-time key"):
        play.nodes[10].shares({**play.keys, 13: play.keys[16]}, threshold=3, degree=9)
    with pytest.raises(FederationError, match="other keys of this node"):
        play.nodes[13].shares({**play.keys, 13: new_node(13).keys()}, threshold=3, degree=9)
    without = {me: keys for me, keys in play.keys.items() if me != 16}
    with pytest.raises(FederationError, match="other keys of this node"):
        play.nodes[16].shares(without, threshold=2, degree=9)
    for threshold in (0, 2, 5):
        with pytest.raises(FederationError, match="more than half of 4 nodes"):
            Roster.of(play.keys, context=CONTEXT, threshold=threshold, degree=9)


def test_nodes_with_different_rosters_cannot_read_each_others_shares() -> None:
    """A server that leaves a node out of one list only splits the nodes, without any gain."""
    play = Play(5, 4)
    without = {me: play.keys[me] for me in (10, 13, 16, 19)}
    play.nodes[10].shares(without, threshold=4, degree=9)
    play.share([13, 16, 19])
    boxes = {me: play.sealed_by[me][10] for me in (13, 16, 19)}
    with pytest.raises(FederationError, match="cannot be opened"):
        play.nodes[10].accept(boxes)


def test_a_server_that_tells_two_lists_is_refused() -> None:
    """Four nodes of five must sign one list, and each signs one only."""
    play = Play(5, 4).share().mask()
    everybody = play.survivors
    told = {10: everybody, 13: everybody, 16: everybody, 19: everybody[:4]}
    signed = {me: play.nodes[me].agree_on(seen) for me, seen in told.items()}
    for me, seen in told.items():
        with pytest.raises(FederationError, match="confirm this list"):
            play.nodes[me].reveal(seen, signed)


def test_confirmations_count_once_for_each_survivor_that_signed() -> None:
    play = Play(5, 4).share().mask()
    good = {me: play.nodes[me].agree_on(play.survivors) for me in play.survivors}
    with pytest.raises(FederationError, match="1 nodes confirm"):
        play.nodes[10].reveal(play.survivors, dict.fromkeys(play.survivors, good[10]))
    fake = {**dict(list(good.items())[:3]), 99: sign_as(99)(b"x")}
    with pytest.raises(FederationError, match="3 nodes confirm"):
        play.nodes[13].reveal(play.survivors, fake)
    with pytest.raises(FederationError, match="agreed on another list"):
        play.nodes[16].reveal(play.survivors[:4], good)
    assert play.nodes[19].reveal(play.survivors, dict(list(good.items())[1:]))
    # A member that is no survivor does not count, though its signature is of this list.
    play = Play(5, 4).share().mask([10, 13, 16, 19])
    good = {me: play.nodes[me].agree_on(play.survivors) for me in play.survivors}
    good[22] = sign_as(22)(_survivors_statement(play.roster, tuple(play.survivors)))
    del good[19]
    with pytest.raises(FederationError, match="3 nodes confirm"):
        play.nodes[10].reveal(play.survivors, good)
    late = Play(3, 2).share().mask()
    with pytest.raises(FederationError, match="not agreed on any"):
        late.nodes[10].reveal(late.survivors, {})


def test_a_survivor_whose_shares_did_not_come_is_refused() -> None:
    """The two nodes would not have the same masks, and the sum would be noise."""
    play = Play(4, 3).share()
    play.nodes[10].accept({me: play.sealed_by[me][10] for me in (16, 19)})
    play.nodes[10].mask(play.vectors[10])
    with pytest.raises(FederationError, match="did not get"):
        play.nodes[10].agree_on(list(play.nodes))


def test_wrong_shares_of_hostile_nodes_are_left_out() -> None:
    """Any 7 in a row of 11 have a liar among them, so trying a few groups would not be enough."""
    play = Play(12, 7).share().mask(range(10, 43, 3)).reveal()
    for liar in (10, 19, 28, 37):
        for node, share in play.revealed[liar].items():
            play.revealed[liar][node] = share[:-1] + bytes([share[-1] ^ 1])
    assert play.exact()
    # A share of another holder is wrong as well.
    play.revealed[13] = play.revealed[16]
    with pytest.raises(FederationError, match="6 shares are there, 7 are needed"):
        play.unmask()


@pytest.mark.parametrize(("wrong", "fails"), [(1, False), (6, True)])
def test_a_node_that_deals_wrong_shares_makes_the_attempt_fail_at_most(
    wrong: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(6, 4)
    split = masks.split

    def dishonest(secret: bytes, threshold: int, holders: int) -> list[bytes]:
        good, other = split(secret, threshold, holders), split(bytes(32), threshold, holders)
        return other[:wrong] + good[wrong:]

    play.share(list(play.nodes)[:5])
    with monkeypatch.context() as patch:
        patch.setattr(masks, "split", dishonest)
        play.share([25])
    play.mask(list(play.nodes)[:5]).reveal()
    if fails:
        with pytest.raises(FederationError, match="shares of node 25 do not fit"):
            play.unmask()
    else:
        assert play.exact()


@pytest.mark.parametrize("place", [0, 70, -1])
def test_a_changed_or_foreign_box_is_refused(place: int) -> None:
    play = Play(3, 2).share()
    box = bytearray(play.sealed_by[13][10])
    box[place] ^= 1
    with pytest.raises(FederationError, match="cannot be opened"):
        play.nodes[10].accept({13: bytes(box)})
    with pytest.raises(FederationError, match="cannot be opened"):
        play.nodes[13].accept({10: play.sealed_by[16][13]})


JUNK = st.one_of(
    st.none(),
    st.integers(-3, 2**65),
    st.text(max_size=3),
    st.binary(max_size=300),
    st.lists(st.integers(0, 30), max_size=4),
    st.dictionaries(st.integers(0, 30), st.binary(max_size=200), max_size=4),
    st.dictionaries(st.sampled_from(["cipher", "mask", "seed"]), st.binary(max_size=33)),
)


@settings(max_examples=25)
@given(JUNK)
def test_malformed_input_raises_one_kind_of_error(junk: Any) -> None:
    play = Play(3, 2)
    with pytest.raises(FederationError):
        play.nodes[10].shares(junk, threshold=2, degree=9)
    with pytest.raises(FederationError):
        play.nodes[13].shares({**play.keys, 16: junk}, threshold=2, degree=9)
    with pytest.raises(FederationError, match="not valid"):
        masks.agree(masks.new_keys().private, bytes(32), b"a key that everybody shares")
    play = Play(3, 3).share()
    play.nodes[10].accept(route(play.roster, play.sealed_by)[10])
    with pytest.raises(FederationError):
        play.nodes[10].mask(junk)
    with pytest.raises(FederationError):
        play.nodes[13].accept(junk)
    with pytest.raises(FederationError):
        check_shares(play.roster, 10, junk)
    play = Play(3, 3).share().mask()
    with pytest.raises(FederationError):
        play.nodes[10].agree_on(junk)
    play.nodes[13].agree_on(play.survivors)
    if junk is not None:
        with pytest.raises(FederationError):
            play.nodes[13].reveal(play.survivors, junk)
    play.revealed = {10: junk, 13: {10: junk, 13: junk}}
    with pytest.raises(FederationError):
        play.unmask()


@settings(max_examples=30)
@given(st.integers(2, 20), st.data())
def test_as_many_shares_as_needed_give_the_secret_and_others_do_not(
    holders: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(2, holders))
    secret = data.draw(st.binary(min_size=32, max_size=32))
    shares = data.draw(st.permutations(masks.split(secret, threshold, holders)))
    assert {len(share) for share in shares} == {masks.SHARE_BYTES}
    assert masks.combine(shares[:threshold]) == secret
    assert masks.combine(shares[: threshold - 1]) != secret
    changed = [shares[0][:-1] + bytes([shares[0][-1] ^ 1]), *shares[1:threshold]]
    assert masks.combine(changed) != secret


def test_shares_are_values_of_a_polynomial(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 7 + 5x + 3x^2 modulo a prime that only the largest secrets come near."""
    coefficients = iter([5, 3])
    monkeypatch.setattr("secrets.randbelow", lambda limit: next(coefficients))
    shares = masks.split((7).to_bytes(32, "big"), 3, 4)
    assert [int.from_bytes(share[4:], "big") for share in shares] == [15, 29, 49, 75]
    assert [int.from_bytes(share[:4], "big") for share in shares] == [1, 2, 3, 4]
    monkeypatch.setattr("secrets.randbelow", lambda limit: limit - 1)
    (share, _) = masks.split(b"\xff" * 32, 2, 2)
    # 2^256 - 1 + (p - 1) is 2^256 - 2 modulo p.
    assert int.from_bytes(share[4:], "big") == 2**256 - 2
    prime = 2**256 + 297
    assert all(pow(base, prime - 1, prime) == 1 for base in (2, 3, 5, 7, 11))


@given(st.integers(2, 60), st.integers(1, 20), st.binary(max_size=8))
def test_neighbours_are_mutual_and_as_many_as_asked(count: int, half: int, seed: bytes) -> None:
    members, degree = list(range(0, 7 * count, 7)), 2 * half
    graph = neighbours(members, degree, seed)
    assert {len(near) for near in graph.values()} == {min(degree, count - 1)}
    for me, near in graph.items():
        assert me not in near
        assert all(me in graph[other] for other in near)
    if degree < count - 1:
        assert graph == neighbours(members[::-1], degree, seed)
        with pytest.raises(SettingsError, match="even"):
            neighbours(members, degree - 1, seed)


@pytest.mark.parametrize("nodes", [100, 500, 1000, 10_000, 100_000])
def test_the_default_degree_is_as_safe_as_its_docstring_says(nodes: int) -> None:
    degree = default_degree(nodes)
    needed = -(-7 * (degree + 1) // 10)
    colluding = stats.hypergeom(nodes - 1, nodes // 10, degree)
    assert nodes * colluding.sf(2 * needed - (degree + 1) - 1) < 2.0**-36
    assert (nodes * 0.4 ** (degree / 2)) ** 2 / 2 < 2.0**-70
    assert default_degree(256) == 255
    members = list(range(100))
    assert neighbours(members, 68, b"a") != neighbours(members, 68, b"b")
