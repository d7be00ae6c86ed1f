"""What a server sees of one node, if everything that crosses and all that it keeps is recorded.

All tests of randomness together fail by chance less than once in 10^6 runs: there are fewer than
300 of them, each at 10^-9.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

import privrec
import raw
from loopback import Loopback, count_attempts
from privrec.algorithms.budgets import BOUND
from privrec.algorithms.privrec_plus import solve as fit
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort, Phase
from privrec.core.round import Network, one_by_one
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.protocol import masks, wire
from privrec.protocol import node as host
from privrec.protocol.coding import Coding, coding_of, layout_of
from privrec.protocol.masks import Roster, Words
from privrec.protocol.secure_sum import _pair_seed
from privrec.protocol.server import executor
from privrec.protocol.terms import plan_of
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.testing import small
from privrec.transport.run_server import _show
from privrec.types import F64
from rounding import coding_error

NODES = 4
RARE = 1e-9
ROUND = 1
"""The round of the moments: 120 items have 7,260 pairs, so a vector has 58,080 bytes."""


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Federation:
    # So that all items are in the sum of pairs.
    monkeypatch.setattr(fit, "_FEWEST", 120)
    return privrec.load("synthetic:users=60,items=120,longest=20")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Tapped:
    """A federation whose server is tapped, and what each node truly summed up in a round."""

    def __init__(self, data: Federation, path: Path, **terms: Any) -> None:
        recipe = "dp-privrec-plus"
        chosen = small(recipe, cohort=40, noise=terms.pop("noise", "seeded"))
        prepared = prepare(configure(recipe, data.name, chosen), data)
        self.crossed: list[tuple[int, raw.Message, raw.Message, bytes]] = []
        self.pair_keys: dict[int, bytes] = {}
        self.net = Loopback(prepared, path, nodes=NODES, tap=self.tap, missing=0.25, **terms)
        self.run = self.net.run()

    def tap(self, node: int, request: bytes, reply: bytes | None) -> bytes | None:
        body = (reply or b"")[2 + int.from_bytes((reply or b"")[:2], "big") :]
        self.crossed.append((node, raw.unpack(request), raw.unpack(body), body))
        if (current := self.net.nodes[node]._round) is not None:
            # No server has this; it is here to show what would be enough to read a node.
            self.pair_keys[node] = current._pair.private
        return reply

    def play(self) -> F64:
        """Play one round with everybody, and return the sum that the server gets."""
        total = self.net.play(number=1)
        return np.concatenate([np.ravel(total.update[name]) for name in sorted(total.update)])

    def place(self) -> tuple[Phase, dict[str, Any], float]:
        first, phase, *_ = self.run.stages()
        assert isinstance(first, Phase)
        assert isinstance(phase, Phase)
        assert phase.first == ROUND
        state = phase.start(first.start(None).params)
        return phase, dict(phase.tell(state)), state.clip_norm

    def true_sum(self, node: int) -> F64:
        """Return the sum of a node's people by the plain loop, from their data."""
        return self.truth(node, *self.place(), np.array(self.net.terms.positions(node)))

    def truth(self, node: int, phase: Phase, told: Any, clip: float, people: Any) -> F64:
        terms, mine = self.net.terms, self.net.prepared.task.federation.take(self.net.slices[node])
        take = plan_of(
            terms, self.net.prepared.task.federation.catalogue, mine, node
        ).task.federation.take
        total = one_by_one(phase, told, Cohort(people, take), phase.first, clip)
        return np.concatenate([np.ravel(total.update[name]) for name in sorted(total.update)])

    def coding(self) -> Coding:
        phase, told, clip = self.place()
        nobody = self.run.task.federation.take(np.arange(1))
        layout = layout_of(phase, told, nobody, ROUND, clip)
        return coding_of(self.net.terms.people, phase, layout, clip)

    def replies(self, kind: str) -> dict[int, raw.Message]:
        return {node: reply for node, _, reply, _ in self.crossed if reply.about["kind"] == kind}

    def masked(self) -> dict[int, Words]:
        return {node: reply.arrays["sum"] for node, reply in self.replies("mask").items()}

    def roster(self) -> Roster:
        terms, server = self.net.terms, self.net.server
        keys = {
            node: raw.blobs_by_name(reply.about["keys"])
            for node, reply in self.replies("keys").items()
        }
        attempt = wire.Attempt(server.run, ROUND, self.replies("keys")[0].about["attempt"])
        return Roster.of(
            keys,
            context=wire.round_context(terms.fingerprint, attempt, BOUND),
            threshold=terms.threshold(NODES),
            degree=masks.default_degree(NODES),
        )

    def without_own_masks(self) -> dict[int, Words]:
        """Return each masked vector without the mask whose seed the server learns at the end."""
        roster, found = self.roster(), {}
        revealed = {
            giver: raw.blobs(reply.about["shares"])
            for giver, reply in self.replies("reveal").items()
        }
        for node, words in self.masked().items():
            given = [revealed[giver][node] for giver in roster.holders(node)]
            assert {share[:1] for share in given} == {b"s"}
            seed = masks.combine([share[1:] for share in given][: roster.needed(node)])
            found[node] = words.copy()
            own = masks.derive(seed, roster.about(b"own", node))
            masks.add_mask(found[node], own, sign=-1)
        return found


def added(vectors: Iterable[Words]) -> Words:
    total = np.zeros(7260, np.uint64)
    for words in vectors:
        total = total + words
    return total


def looks_random(words: npt.NDArray[Any]) -> bool:
    """Return whether all bytes are as frequent as each other, and every bit is half the time 1."""
    counted = np.bincount(np.ascontiguousarray(words).view(np.uint8), minlength=256)
    if stats.chisquare(counted).pvalue < RARE:
        return False
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    off = np.abs(bits.sum(axis=0).astype(np.float64) - len(words) / 2).max()
    return bool(64 * 2 * stats.norm.sf(off / np.sqrt(len(words) / 4)) > RARE)


def some_of(words: npt.NDArray[Any]) -> list[bytes]:
    """Return up to 60 pieces of 16 bytes of a vector: two neighbours that are not small."""
    both = np.flatnonzero((words[:-1] != 0) & (words[1:] != 0))
    rng = np.random.default_rng(0)
    places = rng.choice(both, min(60, len(both)), replace=False)
    return [np.ascontiguousarray(words[k : k + 2]).tobytes() for k in places]


def holds(content: bytes, words: npt.NDArray[Any]) -> bool:
    """Return whether any of these pieces of a vector is in the content."""
    return any(piece in content for piece in some_of(words))


def reachable(thing: object, seen: set[int] | None = None) -> Iterator[bytes]:
    """Yield all bytes, text and arrays that an object leads to; what it calls is left out."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, bytes | str):
        yield thing if isinstance(thing, bytes) else thing.encode()
    elif isinstance(thing, np.ndarray):
        yield np.ascontiguousarray(thing).tobytes()
    elif isinstance(thing, dict):
        for item in thing.items():
            yield from reachable(item, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for part in thing:
            yield from reachable(part, seen)
    elif callable(thing):
        return
    else:
        names = [one.name for one in fields(thing)] if is_dataclass(thing) else []
        for name in {*names, *getattr(thing, "__dict__", {}), *getattr(thing, "__slots__", ())}:
            yield from reachable(getattr(thing, name, None), seen)


def test_without_secure_sums_a_tap_reads_every_node(data: Federation, tmp_path: Path) -> None:
    tapped = Tapped(data, tmp_path, secure_sum=False)
    total, read = tapped.play(), np.zeros(0)
    for node, reply in tapped.replies("sum").items():
        truth = tapped.true_sum(node)
        found = reply.arrays["sum"]
        np.testing.assert_allclose(found, truth, atol=1e-9)
        read = found + (read if len(read) else 0)
        # The search that finds nothing below does find something here.
        [body] = [body for one, _, _, body in tapped.crossed if one == node]
        assert holds(body, found)
    np.testing.assert_allclose(total, read, atol=1e-9)


def test_with_secure_sums_the_server_can_take_off_one_kind_of_mask_only(
    data: Federation, tmp_path: Path
) -> None:
    """It learns all own seeds, and so the sum of all nodes; every smaller group stays random."""
    tapped = Tapped(data, tmp_path)
    total, coding = tapped.play(), tapped.coding()
    truth = {node: tapped.true_sum(node) for node in range(NODES)}
    assert {len(words) for words in tapped.masked().values()} == {7260}
    assert all(looks_random(words) for words in tapped.masked().values())
    bare = tapped.without_own_masks()
    for size in range(1, NODES):
        for group in combinations(range(NODES), size):
            rest = added(bare[node] for node in group)
            assert looks_random(rest)
            # Against what is expected, so that an attack with a guess fails as well.
            guess = coding.encode(np.sum([truth[node] for node in group], axis=0), 40)
            assert looks_random(rest - guess)
            assert not np.isclose(coding.decode(rest), coding.decode(guess), 0, 1e-3).any()
    every = added(bare.values())
    everybody = np.sum(list(truth.values()), axis=0)
    assert not looks_random(every)
    np.testing.assert_array_equal(coding.decode(every), total)
    np.testing.assert_allclose(
        total, everybody, atol=coding_error(coding, NODES, np.abs(total).max())
    )


def test_the_attack_would_work_with_one_more_secret(data: Federation, tmp_path: Path) -> None:
    """With a node's own pair key, the same steps end at its true sum."""
    tapped = Tapped(data, tmp_path)
    tapped.play()
    bare, roster, coding = tapped.without_own_masks(), tapped.roster(), tapped.coding()
    for node, words in bare.items():
        for other in roster.neighbours[node]:
            pair = _pair_seed(roster, tapped.pair_keys[node], node, other)
            masks.add_mask(words, pair, sign=-1 if node < other else 1)
        truth = tapped.true_sum(node)
        close = coding_error(coding, 1, np.abs(truth).max()) + 1e-9
        np.testing.assert_allclose(coding.decode(words), truth, atol=close)


def test_sums_of_nothing_are_as_random_as_any(
    data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros show a missing mask, one that two nodes add with the same sign, or one used twice."""

    monkeypatch.setattr(host.Node, "_vector", lambda self, task: np.zeros(task.layout.size))
    tapped = Tapped(data, tmp_path)
    assert not tapped.play().any()
    masked, bare = tapped.masked(), tapped.without_own_masks()
    for words in (masked, bare):
        for group in combinations(range(NODES), NODES - 1):
            assert looks_random(added(words[k] for k in group))
        for one, other in combinations(range(NODES), 2):
            assert looks_random(words[one] - words[other])
            assert looks_random(words[one] + words[other])
    # The masks with neighbours cancel, the own ones do not.
    assert looks_random(added(masked.values()))
    assert not added(bare.values()).any()


def test_neither_the_server_nor_its_disk_ever_holds_one_nodes_vector(
    data: Federation, tmp_path: Path
) -> None:
    """A whole run: after each round, and at each change of the status, everything is searched."""
    tapped = Tapped(data, tmp_path / "net")
    disk, status = tmp_path / "server", tmp_path / "server" / "status.json"
    disk.mkdir()
    kept: list[bytes] = []

    def remember(_: object) -> None:
        kept.extend(path.read_bytes() for path in disk.rglob("*") if path.is_file())

    watch = partial(_show, remember, status)
    tapped.net.server = server = replace(tapped.net.server, watch=watch)
    vectors: list[npt.NDArray[Any]] = []

    def run(phase: Phase, told: Any, cohort: Cohort, number: int, clip: float) -> Any:
        total = executor(server)(phase, told, cohort, number, clip)
        kept.extend(reachable(server))
        nodes = server.terms.node_of(cohort.people)
        here = [int(node) for node in np.unique(nodes)]
        arrays = {name: np.asarray(leaf) for name, leaf in told.items()}
        layout = layout_of(phase, arrays, cohort.take(np.arange(1)), number, clip)
        coding = coding_of(server.terms.people, phase, layout, clip)
        for node in here:
            people = cohort.people[nodes == node]
            truth = tapped.truth(node, phase, arrays, clip, people)
            if phase.first < 2:  # Later sums come from a compiled kernel and differ in a few bits.
                vectors.extend((coding.encode(truth, len(people)), truth))
        return total

    folder = records.create_run(disk / "run", tapped.run.task.settings, "{}", None)
    play_stages(tapped.run, folder, network=Network(run=run, about=server.network().about))
    remember(None)
    everything = b"\0".join(dict.fromkeys(kept))
    assert b"ledger" in b"".join(str(path).encode() for path in disk.rglob("*"))
    assert server.terms.fingerprint.encode() in everything
    assert sum(len(some_of(words)) for words in vectors) > 500
    for words in vectors:
        assert not holds(everything, words)
    for words in tapped.masked().values():
        assert not holds(everything, words)


JUNK: list[Any] = [
    *(None, True, -1, 0, 3, 2**53, 10**400, 1.5, float("nan"), float("inf"), "", "0", "x", "é" * 9),
    *([], [0], [True, 1], ["0"], [[0]], {}, {"0": "00"}, {"x": "00"}, {"0": {"mask": "00"}}),
    *({"0": None}, {"-1": "zz"}, {"9" * 5000: "00"}, {"0": dict.fromkeys(masks.ADVERTISED, "aa")}),
]
ARRAYS = [
    *(np.arange(0), np.arange(3), np.array([10**18]), np.array([np.nan]), np.zeros((2, 2))),
    *(np.array(3), np.ones(5, np.float16), np.ones(5, np.bool_), np.full(40, 1e38, np.float32)),
    *(np.arange(-5, 35), np.full(50, 10**6), np.zeros(50, np.int32), np.zeros(120, np.uint64)),
]


def spoilt(request: bytes, rng: np.random.Generator) -> bytes:
    """Return a request with some bytes, one value or one array changed."""
    asked, way = raw.unpack(request), int(rng.integers(4))
    if way == 0:
        found = bytearray(request)
        for place in rng.integers(0, len(found), int(rng.integers(1, 6))).tolist():
            found[place] ^= int(rng.integers(1, 256))
        return bytes(found[: int(rng.integers(len(found)))] if rng.integers(3) == 0 else found)
    if way == 1 and asked.arrays:
        name = str(rng.choice([*asked.arrays]))
        array = ARRAYS[int(rng.integers(len(ARRAYS)))]
        return raw.pack(asked.about, {**asked.arrays, name: array})
    value = JUNK[int(rng.integers(len(JUNK)))]
    if way == 2:
        value = rng.choice(["sum", "keys", "shares", "mask", "agree", "reveal", "hello"])
        return raw.pack({**asked.about, "kind": str(value)}, asked.arrays)
    return raw.pack({**asked.about, str(rng.choice([*asked.about])): value}, asked.arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alone", "rounds"), [(200, 4), pytest.param(2400, 40, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("noise_from", ["server", "nodes"])
def test_no_request_gets_an_exception_or_a_plain_vector(
    noise_from: str,
    alone: int,
    rounds: int,
    data: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of them: most alone, and some in the middle of rounds, where a node expects one."""
    # What is changed in a request depends on its length, so signatures and numbers have one.
    count_attempts(monkeypatch)
    more: dict[str, Any] = {"reveals": 10**6, "attempts": 1, "fake": True}
    more |= {"noise": "secure"} if noise_from == "nodes" else {}
    tapped = Tapped(data, tmp_path, noise_from=noise_from, **more)
    tapped.play()
    net, rng, kinds = tapped.net, np.random.default_rng(0), Counter[str]()
    truth = tapped.true_sum(0)
    secret = [truth, tapped.coding().encode(truth, 40)]
    handle, at_once = net.nodes[0].handle, True
    recorded = [raw.pack(*asked) for node, asked, *_ in tapped.crossed if node == 0]

    def hostile(request: bytes) -> bytes:
        wrong = at_once or rng.integers(3) == 0
        reply: bytes = handle(spoilt(request, rng) if wrong else request)
        body = raw.body_of(reply)
        found = raw.unpack(body)
        kinds[found.about["kind"]] += 1
        assert {one.dtype for one in found.arrays.values()} <= {np.dtype(np.uint64)}
        assert (found.about["kind"] == "mask") == bool(found.arrays)
        assert not any(holds(body, words) for words in secret)
        return reply

    for _ in range(alone):
        hostile(recorded[int(rng.integers(len(recorded)))])
    monkeypatch.setattr(net.nodes[0], "handle", hostile)
    at_once = False
    for _ in range(rounds):
        with contextlib.suppress(FederationError):
            tapped.play()
    assert {"refused", "keys", "shares", "mask", "reveal"} <= kinds.keys()
    assert kinds["refused"] > 0.8 * alone
