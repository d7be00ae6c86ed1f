"""A curious server keeps all that it is sent, also what is late, and unmasks what it can.

Without noise from nodes, two sums of one round over different nodes would show a single node.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import raw
from loopback import Loopback
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.phase import Phase
from privrec.core.round import Network
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.protocol import wire
from privrec.protocol.masks import Roster, default_degree
from privrec.protocol.node import Reveals
from privrec.protocol.secure_sum import unmask
from privrec.protocol.server import Unmasking
from privrec.testing import small
from privrec.types import IntArray
from tiny import each_recipe

CENTRAL = {"privrec-cen", "ncf", "popularity", "own-items", "item-knn", "ease"}
NAMES = [name for name in RECIPES if name not in CENTRAL]
Words = npt.NDArray[np.uint64]


def body(content: bytes) -> raw.Message:
    return raw.unpack(raw.body_of(content))


class Curious:
    """What a server was sent, by attempt, kind and node; some answers reach it late."""

    def __init__(self, net: Loopback, late: set[tuple[int, str]], times: int = 1) -> None:
        self.net, self.run, self.left = net, net.server.run, dict.fromkeys(late, times)
        self.sent: dict[int, dict[str, dict[int, raw.Message]]] = {}
        net.tap = self.tap

    def tap(self, node: int, request: bytes, reply: bytes | None) -> bytes | None:
        asked = raw.unpack(request).about
        kind = str(asked["kind"])
        if reply is not None and body(reply).about["kind"] == kind:
            kinds = self.sent.setdefault(asked["attempt"], {})
            kinds.setdefault(kind, {})[node] = body(reply)
        if self.left.get((node, kind), 0):
            self.left[node, kind] -= 1
            return None
        return reply

    def play(self, people: IntArray | None = None) -> Any:
        """Play the first round of the recipe."""
        return self.net.play(people)

    def phase(self) -> Phase:
        phase = self.net.run().stages()[0]
        assert isinstance(phase, Phase)
        return phase

    def sums(self) -> dict[frozenset[int], Words]:
        """Return every sum that can be unmasked, by the nodes that are in it."""
        terms, sums = self.net.terms, dict[frozenset[int], Words]()
        for attempt, kinds in self.sent.items():
            keys = {n: raw.blobs_by_name(m.about["keys"]) for n, m in kinds["keys"].items()}
            shares = kinds.get("shares", {}).items()
            sealed = {n: raw.blobs(m.about["shares"]) for n, m in shares}
            reveals = kinds.get("reveal", {}).items()
            revealed = {n: raw.blobs(m.about["shares"]) for n, m in reveals}
            vectors = {n: m.arrays["sum"] for n, m in kinds.get("mask", {}).items()}
            try:
                roster = Roster.of(
                    keys,
                    context=wire.round_context(
                        terms.fingerprint,
                        wire.Attempt(self.run, 0, attempt),
                        self.phase().aggregator.clip_norm,
                    ),
                    threshold=terms.threshold(len(keys)),
                    degree=default_degree(len(keys)),
                )
                total: Any = np.sum(list(vectors.values()), axis=0, dtype=np.uint64)
                sums[frozenset(vectors)] = unmask(
                    roster, total, survivors=sorted(vectors), sealed_by=sealed, revealed=revealed
                )
            except FederationError:
                continue
        return sums


def loopback(recipe: str, data: Federation, path: Path, **more: Any) -> Loopback:
    settings = small(recipe, neighbours=0)
    return Loopback(prepare(configure(recipe, data.name, settings), data), path, **more)


@each_recipe(NAMES)
def test_a_late_answer_and_a_second_attempt_show_no_single_node(
    recipe: str, data: Federation, tmp_path: Path
) -> None:
    curious = Curious(loopback(recipe, data, tmp_path), late={(2, "reveal")})
    curious.play()
    assert len(curious.sent) == 2
    assert curious.sums().keys() == {frozenset({0, 1, 2})}


@pytest.mark.parametrize("late", [0, 1, 2, 3, 4])
def test_no_sums_of_one_round_differ_by_one_node_whoever_is_late(
    late: int, data: Federation, tmp_path: Path
) -> None:
    """Also where enough others answer to end the round without the late ones."""
    net = loopback("dp-privrec-plus", data, tmp_path, nodes=5, attempts=4, missing=0.3)
    curious = Curious(net, {(late, "mask"), (late, "reveal"), ((late + 1) % 5, "reveal")}, times=2)
    try:
        curious.play()
    except FederationError:
        assert net.server.status.abandoned == 4
    assert len(curious.sums()) <= 1


@pytest.mark.slow
def test_a_node_helps_a_round_with_one_sum_alone_also_after_a_restart(
    data: Federation, tmp_path: Path
) -> None:
    net = loopback("dp-privrec-plus", data, tmp_path)
    everybody = net.everybody()
    first = Curious(net, late=set())
    first.play(everybody)
    net.nodes = {node: net.node(node) for node in net.nodes}
    net.server = net.new_server()
    again = Curious(net, late=set())
    again.play(everybody)
    assert again.sums().keys() == first.sums().keys()
    # One person less, on any node, would show that person.
    for person in (0, len(everybody) - 1):
        net.server = net.new_server()
        less = Curious(net, late=set())
        with pytest.raises(FederationError, match="nothing of it was published"):
            less.play(np.delete(everybody, person))
        assert not less.sums()
        assert any("another sum of round 0" in why for why in net.server.status.refused)


def test_a_killed_server_ends_the_round_with_the_same_people_and_nodes(
    data: Federation, tmp_path: Path
) -> None:
    net, path = loopback("dp-privrec-plus", data, tmp_path), tmp_path / "unmasking.json"
    curious = Curious(net, late=set())
    drawn = net.everybody()[::2].copy()
    object.__setattr__(net.server, "unmasking", Unmasking(path))

    class Killed(BaseException): ...

    def kill(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        if raw.unpack(request).about["kind"] == "reveal" and node == 1:
            raise Killed
        return curious.tap(node, request, reply)

    net.tap = kill
    with pytest.raises(Killed):
        curious.play(drawn)
    net.server = net.new_server()
    object.__setattr__(net.server, "unmasking", Unmasking(path))
    network: Network = net.server.network()
    begun = network.begun(0)
    assert begun is not None
    assert begun.tolist() == drawn.tolist()
    assert network.begun(1) is None
    net.tap = curious.tap
    curious.play(begun)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_node_that_is_missing_from_a_begun_round_is_named(
    data: Federation, tmp_path: Path
) -> None:
    net = loopback("dp-privrec-plus", data, tmp_path, attempts=3)
    curious = Curious(net, late={(2, "reveal")}, times=9)

    def dies(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        found = curious.tap(node, request, reply)
        if raw.unpack(request).about["kind"] == "reveal":
            net.nodes.pop(2, None)
        return found

    net.tap = dies
    with pytest.raises(FederationError, match=r"when nodes \[0, 1, 2\] are all there"):
        curious.play()
    # The node comes back, and the round is ended.
    net.nodes[2], net.tap = net.node(2), None
    assert curious.play() is not None


@pytest.mark.parametrize(("noise_from", "exchanges"), [("server", 2), ("nodes", 3)])
@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_revealed_after_the_deadline(
    noise_from: str, exchanges: int, late: bool, data: Federation, tmp_path: Path
) -> None:
    settings = {"noise": "secure", "noise_multiplier": 1.0, "epsilon": None}
    config = configure("dp-privrec-plus", data.name, {**small("dp-privrec-plus"), **settings})
    net = Loopback(prepare(config, data), tmp_path, noise_from=noise_from, attempts=1)
    curious, now = Curious(net, late=set()), [0.0]
    for host in net.nodes.values():
        host._clock = lambda: now[0]
    before_reveal = "mask" if noise_from == "server" else "agree"

    def slow(node: int, request: bytes, reply: bytes | None) -> bytes | None:
        if node == 2 and raw.unpack(request).about["kind"] == before_reveal:
            now[0] = net.terms.deadline * exchanges + (0.1 if late else -0.1)
        return curious.tap(node, request, reply)

    net.tap = slow
    if not late:
        curious.play()
        return
    with pytest.raises(FederationError, match="nothing of it was published"):
        curious.play()
    assert not curious.sums()
    assert any("deadline" in why for why in net.server.status.refused)


def test_what_a_node_wrote_down_before_is_read(tmp_path: Path) -> None:
    reveals = Reveals(tmp_path / "reveals.json")
    reveals.bind(3, "b")
    reveals.bind(3, "a", [1, 0])
    reveals.count(4, most=1)
    reveals = Reveals(tmp_path / "reveals.json")
    reveals.bind(3, "a", [0, 1])
    for other, nodes in (("b", None), ("b", [0, 1]), ("a", [0, 1, 2])):
        with pytest.raises(FederationError, match="another sum of round 3"):
            reveals.bind(3, other, nodes)
    with pytest.raises(FederationError, match="answered 1 times"):
        reveals.count(4, most=1)
    (tmp_path / "reveals.json").write_text("[")
    with pytest.raises(FederationError, match="cannot read"):
        Reveals(tmp_path / "reveals.json")


def test_nodes_are_not_told_who_else_was_drawn(data: Federation, tmp_path: Path) -> None:
    """Sampling amplifies privacy only against those who do not know the cohort."""
    net = loopback("dp-privrec-plus", data, tmp_path, nodes=5)
    starts = [net.terms.positions(node).start for node in range(5)]
    heard = []
    cohorts: tuple[list[int], ...] = ([0, 1, 2, 3, 4], [0, 1], [0, 3], [2, 3], [0], [4], [])
    for cohort in cohorts:
        net.nodes = {node: net.node(node) for node in net.nodes}
        for path in net.paths:
            (path / "reveals.json").unlink(missing_ok=True)
        net.nodes, net.server = {n: net.node(n) for n in net.nodes}, net.new_server()
        curious, requests = Curious(net, late=set()), list[Any]()

        def tap(
            node: int, request: bytes, reply: bytes | None, seen: list[Any] = requests
        ) -> bytes | None:
            asked = raw.unpack(request)
            if node == 1:
                about = asked.about
                lists = {name: about.get(name) for name in ("survivors", "sealed", "keys")}
                seen.append(
                    (about["kind"], {k: sorted(map(str, v or ())) for k, v in lists.items()})
                )
            return reply

        net.tap = tap
        total = curious.play(np.array([starts[node] for node in cohort], np.int64))
        counted = sum(np.abs(np.asarray(leaf)).sum() for leaf in total.update.values())
        # The people of one node alone cannot be hidden, and are not asked.
        assert (counted > 1e-6) == (len(cohort) > 1)
        heard.append(requests)
    assert len(heard[0]) == 4
    assert all(requests == heard[0] for requests in heard)


def test_drawn_people_of_one_node_alone_are_never_unmasked(
    data: Federation, tmp_path: Path
) -> None:
    """Others remain, but nobody was drawn there."""
    net = loopback("dp-privrec-plus", data, tmp_path, nodes=5, missing=0.3, min_people=1)
    curious = Curious(net, late={(3, "mask")}, times=9)
    drawn = [net.terms.positions(node).start for node in (1, 3)]
    with pytest.raises(FederationError, match="one node alone"):
        curious.play(np.array(drawn))
    assert not any("reveal" in kinds for kinds in curious.sent.values())
