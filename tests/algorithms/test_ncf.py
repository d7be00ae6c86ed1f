"""NeuMF against plain loops, and what learning a new person's vectors may and may not do."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import privrec
from privrec.algorithms.ncf import (
    Lines,
    Person,
    batches_of,
    fold_in,
    fresh,
    items_of,
    lines_of,
    scores,
    start_of,
)
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.reptile.pack import Instances, pack
from privrec.core.phase import CentralFit, silent
from privrec.core.scorer import TableScorer
from privrec.data.federation import Federation
from privrec.seeds import rng
from privrec.testing import small
from tiny import DATA

N_ITEMS, SIZE, HIDDEN = 7, 3, (4, 5)


def random_params() -> dict[str, Any]:
    """Return parameters none of which is zero or one."""
    draw = np.random.default_rng(0)
    made = fresh(jax.random.key(0), N_ITEMS, SIZE, HIDDEN, 1.0)
    return {name: draw.normal(size=leaf.shape).astype(np.float32) for name, leaf in made.items()}


def slow_score(params: dict[str, Any], p: Any, q_person: Any, item: int) -> float:
    """Return one score, number by number, with the two vectors of the perceptron joined."""
    joined = [*q_person, *params["ncf/mlp/item"][item]]
    x = []
    for k in range(HIDDEN[0]):
        column = [*params["ncf/mlp/0/user"][:, k], *params["ncf/mlp/0/item"][:, k]]
        total = params["ncf/mlp/0/bias"][k]
        total += sum(a * b for a, b in zip(joined, column, strict=True))
        x.append(max(total, 0.0))
    y = []
    for k in range(HIDDEN[1]):
        total = params["ncf/mlp/1/bias"][k]
        for j in range(HIDDEN[0]):
            total += x[j] * params["ncf/mlp/1/weight"][j, k]
        y.append(max(total, 0.0))
    score = float(params["ncf/out/bias"])
    for k in range(SIZE):
        score += params["ncf/out/gmf"][k] * p[k] * params["ncf/gmf/item"][item, k]
    return score + float(np.dot(params["ncf/out/mlp"], y))


def test_scores_are_those_of_a_plain_loop() -> None:
    params, draw = random_params(), np.random.default_rng(1)
    p, q = draw.normal(size=(2, 2, SIZE)).astype(np.float32)
    items = items_of(params, np.arange(N_ITEMS))
    found = scores(params, Person(p[:, None, :], q[:, None, :]), items)
    wanted = [[slow_score(params, p[k], q[k], item) for item in range(N_ITEMS)] for k in range(2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_round_has_every_line_once_and_no_item_of_hers_as_a_negative() -> None:
    owner = np.array([0, 0, 0, 1, 1])
    lines = Lines(owner, np.array([0, 1, 2, 2, 3]), np.array([1, 0.7, 1, 1, 1], np.float32))
    found = batches_of(lines, np.random.default_rng(0), 5, 40, 2)
    assert found.item.shape == (3, 2, 41)
    own = [
        (int(found.owner[s, b]), int(found.item[s, b, 0]), float(found.target[s, b, 0]))
        for s in range(3)
        for b in range(2)
        if found.weight[s, b, 0]
    ]
    wanted = zip(owner.tolist(), lines.item.tolist(), lines.target.tolist(), strict=True)
    assert sorted(own) == sorted(wanted)
    assert found.weight.sum((1, 2)).min() > 0
    assert not found.target[..., 1:].any()
    for person, seen in ((0, {0, 1, 2}), (1, {2, 3})):
        hers = (found.owner == person) & (found.weight[..., 0] > 0)
        drawn, kept = found.item[hers][:, 1:], found.weight[hers][:, 1:]
        assert set(np.unique(drawn[kept > 0])) == set(range(5)) - seen
        assert set(np.unique(drawn[kept == 0])) == seen


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


def start_and_next(data: Federation, **more: Any) -> tuple[Any, Any, Any]:
    """Return the fit of small settings, its state before any round, and the one after two."""
    prepared = prepare(configure("ncf", data.name, small("ncf", **more)), data)
    (fit,) = prepared.stages()
    assert isinstance(fit, CentralFit)
    before = fit.start(None)
    state = fit.play(fit.play(before, silent)[0], silent)[0]
    return prepared, before, state


@pytest.mark.slow
def test_what_is_released_holds_nobody_and_the_start_is_the_mean(data: Federation) -> None:
    prepared, before, state = start_and_next(data)
    people = len(prepared.task.split.train)
    assert people not in {data.n_items, 4}
    assert not [name for name, leaf in state.params.items() if people in leaf.shape]
    for half, table in state.opt_state.people._asdict().items():
        assert table.shape == (people, 4)
        np.testing.assert_allclose(
            state.params[f"ncf/start/{half}"], np.asarray(table).mean(0), rtol=1e-4, atol=1e-6
        )
    moved = [name for name in state.params if (state.params[name] != before.params[name]).any()]
    assert set(moved) == set(state.params)


def test_a_round_lowers_the_loss_and_one_step_is_adams(data: Federation) -> None:
    """The first step of Adam moves every number with a slope by the learning rate."""
    prepared, before, _ = start_and_next(data)
    (fit,) = prepared.stages()
    assert isinstance(fit, CentralFit)
    state, losses = before, []
    for _ in range(12):
        state, report = fit.play(state, silent)
        losses.append(report.loss or 0.0)
    assert losses[-1] < losses[0]
    prepared, before, _ = start_and_next(data, batch_size=10_000, learning_rate=0.01)
    (fit,) = prepared.stages()
    assert isinstance(fit, CentralFit)
    lines = lines_of(data, prepared.task.split.train, 0.5)
    batch = batches_of(lines, rng(0, 0, "ncf"), data.n_items, 1, 10_000)
    touched = np.unique(batch.item[batch.weight > 0])
    after = fit.play(before, silent)[0].params["ncf/gmf/item"]
    moved = np.abs(after - before.params["ncf/gmf/item"])
    # Adam's epsilon makes the step of a tiny slope shorter.
    np.testing.assert_allclose(np.median(moved[touched]), 0.01, rtol=1e-2)
    assert moved.max() < 0.01001
    others = np.setdiff1d(np.arange(data.n_items), touched)
    assert not moved[others].any()


@pytest.mark.slow
def test_a_new_person_changes_only_her_vectors_and_her_loss_falls(data: Federation) -> None:
    prepared, _, state = start_and_next(data)
    params = {name: np.array(leaf) for name, leaf in state.params.items()}
    kept = prepared.task.protocol.testing(data)(prepared.task.split.test[:6]).kept
    instances = Instances(negatives=3, batch_size=64)
    packed = pack(kept, instances, n_items=data.n_items, seed=0, round_index=0)
    start = start_of(state.params)
    for client in packed:
        person, losses = fold_in(state.params, client, 30, 0.05, 0.0)
        if int(client.size):
            assert np.all(np.diff(losses[:5]) < 0)
            assert losses[-1] < 0.9 * losses[0]
            assert not np.allclose(person.gmf, start.gmf)
            held, _ = fold_in(state.params, client, 30, 0.05, 1e6)
            np.testing.assert_allclose(held.gmf, start.gmf, atol=0.1)
        empty = client._replace(size=np.int32(0))
        alone, _ = fold_in(state.params, empty, 30, 0.05, 0.0)
        np.testing.assert_array_equal(alone.gmf, start.gmf)
    for name, leaf in params.items():
        np.testing.assert_array_equal(state.params[name], leaf)


@pytest.mark.parametrize("own", [False, True])
def test_the_tested_half_and_other_people_never_matter(own: bool, data: Federation) -> None:
    prepared, _, state = start_and_next(data, own_first=own)
    held = prepared.task.protocol.testing(data)(prepared.task.split.test)
    scorer = prepared.ranker(state.params)
    assert isinstance(scorer, TableScorer)
    assert scorer.own_first is own
    usual = list(scorer(held.kept, held.tested))
    garbage = replace(
        held.tested,
        item=data.n_items - 1 - held.tested.item,
        value=held.tested.value + 9,
        liked=~held.tested.liked,
    )
    last = np.array([len(held.kept) - 1])
    alone = list(scorer(held.kept.take(last), held.tested.take(last)))
    np.testing.assert_allclose(alone[0], usual[-1], rtol=1e-5, atol=1e-6)
    for one, other in zip(usual, scorer(held.kept, garbage), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(not np.allclose(one, usual[0]) for one in usual)
    flat = list(prepared.unadapted(state.params)(held.kept, held.tested))
    assert all(np.array_equal(one, flat[0]) for one in flat)
    assert list(scorer(held.kept.take(last[:0]), held.tested.take(last[:0]))) == []
