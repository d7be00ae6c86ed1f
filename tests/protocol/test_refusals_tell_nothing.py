"""A node's refusals, seen by a hostile server: nothing of them depends on a person's data.

The server tells a node any arrays it likes, asks for one person at a time, and looks at what comes
back: its kind, its words, its size, and whether the person's data was read at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import raw
from loopback import Loopback
from privrec.algorithms.recipes import RECIPES, configure, prepare
from privrec.core.contribution import Contribution
from privrec.core.phase import Cohort, Phase, Told
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol import wire
from privrec.testing import small
from privrec.types import IntArray, Leaf
from subspace import SUBSPACE
from tiny import PLUS_WAYS, go_plus_way, late

IN_SUBSPACE = ("privrec-plus in a subspace", "dp-privrec-plus in a subspace")
CENTRAL = {"privrec-cen", "ncf", "popularity", "own-items", "item-knn", "ease"}
NAMES = [*(name for name in RECIPES if name not in CENTRAL), "subspace", *IN_SUBSPACE, *PLUS_WAYS]
SOON = ("dp-privrec-plus", "dpals")
"""The others are slow tests: every recipe has its own halves of a round."""
PEOPLE = (0, 1)
EXTREMES = (np.nan, np.inf, -1e308, 1e30, -1e9, 1e-30, 1e-320, 0.0)


@pytest.fixture(scope="module", autouse=True)
def _in_the_table() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "subspace", SUBSPACE)
        for name in IN_SUBSPACE:
            plus = RECIPES[name.removesuffix(" in a subspace")]
            values = {**plus.values, "history": "subspace"}
            patch.setitem(RECIPES, name, replace(plus, values=values))
        for name in PLUS_WAYS:
            patch.setitem(RECIPES, name, RECIPES["dp-privrec-plus"])
        yield


class Outcome(NamedTuple):
    """What a server sees of a request, and whether the node read people's data for it."""

    kind: str
    why: str
    size: int
    reads: bool


class Hostile:
    """A server that asks node 0 of two for what it likes."""

    def __init__(self, net: Loopback) -> None:
        self.net, self.attempt, self.reads = net, 10**6, 0
        node = net.nodes[0]
        take = node._take

        def counted(people: IntArray) -> Clients:
            self.reads += 1
            return take(people)

        node._take = counted

    def ask(self, node: int, kind: str, round_index: int, arrays: Any = None, **about: Any) -> Any:
        words = {"kind": kind, "terms": self.net.terms.fingerprint, "run": "", **about}
        bound = self.net.nodes[0]._phase_at(round_index)[0].aggregator.clip_norm
        words = {"clip_norm": bound, **words, "round": round_index, "attempt": self.attempt}
        reply = self.net.nodes[node].handle(raw.pack(words, arrays))
        body = raw.body_of(reply)
        return raw.unpack(body), len(body)

    def tell(self, phase: Phase, told: Mapping[str, Leaf], person: int) -> Outcome:
        """Play the protocol up to the masked sum of one person."""
        self.attempt += 1
        number, nodes = phase.first, (0, 1)
        keys = {str(k): self.ask(k, "keys", number)[0].about["keys"] for k in nodes}
        sent = {k: self.ask(k, "shares", number, keys=keys)[0].about["shares"] for k in nodes}
        arrays = {f"{wire.TOLD}{name}": leaf for name, leaf in told.items()}
        before = self.reads
        reply, size = self.ask(
            0,
            "mask",
            number,
            {**arrays, **only(self.net, person)},
            sealed={"1": sent[1]["0"]},
        )
        kind, why = str(reply.about["kind"]), str(reply.about.get("why"))
        return Outcome(kind, why, size, self.reads > before)


def only(net: Loopback, *people: int) -> dict[str, Leaf]:
    """Return what says that these people of node 0 were drawn."""
    return wire.drawn(np.array(people), net.terms.positions(0))


def federation(recipe: str, data: Federation, path: Path) -> Loopback:
    settings = small(recipe, neighbours=0)
    if recipe == "dp-privrec-plus":  # Little noise: people are enough for moments.
        settings |= {"noise_multiplier": 1e-3, "epsilon": None}
    return Loopback(prepare(configure(recipe, data.name, settings), data), path, nodes=2)


def phases_of(net: Loopback) -> Iterator[tuple[Phase, dict[str, Any]]]:
    params = None
    for phase in net.run().stages():
        assert isinstance(phase, Phase)
        state = phase.start(params)
        params = state.params
        yield phase, {name: np.array(leaf) for name, leaf in phase.tell(state).items()}


def tellings(told: Mapping[str, Any], theirs: IntArray) -> Iterator[dict[str, Any]]:
    """Yield what a hostile server tells: extremes everywhere or for one item, and wrong forms.

    Of a network's many arrays three are spoilt, always the items' among them.
    """
    draw = np.random.default_rng(0)
    chosen = {name for name in told if "item" in name or len(told) <= 4}
    chosen |= set(draw.permutation(sorted(told))[: max(0, 3 - len(chosen))].tolist())
    yield dict(told)
    yield {**told, "more": np.zeros(3)}
    for name, array in told.items():
        if name not in chosen:
            continue
        yield {other: leaf for other, leaf in told.items() if other != name}
        yield {**told, name: array[:-1] if array.ndim else np.zeros(2, array.dtype)}
        yield {**told, name: np.zeros((*array.shape, 2), array.dtype)}
        if array.dtype.kind != "f":
            for position in (-1, 10**6, 0):
                yield {**told, name: np.full_like(array, position)}
            continue
        yield {**told, name: array.astype(np.float16)}
        item = int(draw.choice(theirs)) % len(array) if array.ndim else ()
        for value in EXTREMES:
            with np.errstate(over="ignore"):
                number = array.dtype.type(value)
            spoilt = array.copy()
            spoilt[item] = number
            yield {**told, name: spoilt}
        yield {**told, name: np.full_like(array, draw.choice(EXTREMES))}
    for _ in range(3):
        scales = {name: 10.0 ** draw.uniform(-12, 12) for name in told}
        with np.errstate(over="ignore", invalid="ignore"):
            yield {
                name: (leaf * scales[name]).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf
                for name, leaf in told.items()
            }


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("recipe", [name if name in SOON else late(name) for name in NAMES])
def test_no_answer_depends_on_the_person(
    recipe: str, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_plus_way(monkeypatch, recipe)
    net = federation(recipe, data, tmp_path)
    server = Hostile(net)
    theirs = np.unique(np.concatenate([net.nodes[0]._take(np.array([p])).item for p in PEOPLE]))
    for phase, told in phases_of(net):
        answered = 0
        for k, telling in enumerate(tellings(told, theirs)):
            outcomes = {server.tell(phase, telling, person) for person in PEOPLE}
            assert len(outcomes) == 1, (phase.name, k, outcomes)
            [outcome] = outcomes
            assert outcome.reads == (outcome.kind == "mask"), (phase.name, k, outcome)
            answered += outcome.reads
        assert answered, "what an honest server tells is answered"


def test_a_wrong_step_or_box_is_refused_before_any_data_is_read(
    data: Federation, tmp_path: Path
) -> None:
    net = federation("dpals", data, tmp_path)
    server = Hostile(net)
    [(_, told), *_] = phases_of(net)
    arrays = {**{f"{wire.TOLD}{n}": leaf for n, leaf in told.items()}, **only(net, 0)}
    more: dict[str, Any] = {"sealed": {}}
    assert server.ask(0, "mask", 0, arrays, **more)[0].about["kind"] == "refused"
    server.ask(0, "keys", 0)
    assert server.ask(0, "mask", 0, arrays, **more)[0].about["kind"] == "refused"
    keys = {str(k): server.ask(k, "keys", 0)[0].about["keys"] for k in (0, 1)}
    server.ask(0, "shares", 0, keys=keys)
    for sealed in ({}, {"1": "00" * 196}, {"5": "00"}):
        reply, _ = server.ask(0, "mask", 0, arrays, **{**more, "sealed": sealed})
        assert reply.about["kind"] == "refused"
    assert server.reads == 0


@pytest.mark.parametrize("fails", ["kernel", "contribute", "not finite"])
def test_a_recipe_that_fails_for_some_person_sends_a_sum_all_the_same(
    fails: str, data: Federation, tmp_path: Path
) -> None:
    """A person whose part fails adds zero; if the sum of all fails, zeros are sent."""
    net = federation("dpals", data, tmp_path)
    node = net.nodes[0]
    [phase, *rest] = node._phases()
    own = phase.device.contribute
    victim = net.nodes[0]._take(np.array([1])).ids[0]

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        if len(person.ids) and person.ids[0] == victim and len(person.item):
            raise RuntimeError("her item 7")
        return own(told, person, round_index)

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        if fails == "kernel":
            raise RuntimeError("her item 7")
        total = fastest(phase, told, cohort, round_index, clip_norm)
        return total._replace(update={n: np.nan * v for n, v in total.update.items()})

    device = replace(
        phase.device, contribute=contribute, kernel=None if fails == "contribute" else kernel
    )
    changed = (replace(phase, device=device), *rest)
    node._phases = lambda: changed
    request = wire.Request(
        kind="sum", terms="", run="", round=0, attempt=0, clip_norm=phase.aggregator.clip_norm
    )
    task = node._task(request, only(net, 0, 1, 2))
    vector = node._vector(task)
    assert vector.shape == (task.layout.size,)
    alone = node._vector(replace(task, phase=phase, people=np.array([0, 2])))
    np.testing.assert_allclose(vector, alone if fails == "contribute" else 0 * alone, atol=1e-8)
    assert alone.any()
    assert Hostile(net).tell(changed[0], {}, 1).kind == "mask"
