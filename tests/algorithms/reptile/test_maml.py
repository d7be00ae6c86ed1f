"""MAML against finite differences of a slow loop, and how data is split into support and query."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from test_engine import mixed_federation

import privrec
from privrec.algorithms.recipes import configure, prepare
from privrec.algorithms.reptile.dssm import dssm
from privrec.algorithms.reptile.local import local_maml, local_sgd
from privrec.algorithms.reptile.pack import Instances, PackedClient, PackedTask
from privrec.algorithms.reptile.phase import empty_tasks, pack_tasks, query_lines
from privrec.core.phase import Phase
from privrec.data.federation import Federation
from privrec.seeds import key
from privrec.testing import small
from slow_loop import Instance, Problem, add_slope, embed, train_client, values_of
from tiny import DATA, round_of

RATE, BATCH, LAYERS = 0.7, 8, 2
INSTANCES = Instances(negatives=2, batch_size=BATCH, dislike_target=0.3)
Arrays = dict[str, npt.NDArray[np.float64]]
Person = tuple[dict[str, Any], list[Instance], list[Instance]]
"""Her features, her support and her query."""


@cache
def setting() -> tuple[Federation, Any, dict[str, jax.Array], Problem]:
    federation = mixed_federation()
    schema = federation.schema
    recommender = dssm(
        schema,
        federation.n_items,
        embedding_size=3,
        tower_size=5,
        hidden=(6, 4),
        embedding_scale=0.7,
    )
    problem = Problem(
        user_tables=[f.table for f in schema.of("user")],
        context_tables=[f.table for f in schema.of("context")],
        item_tables=[f.table for f in schema.of("item")],
        item_features={
            name: [values_of(bag, k) for k in range(federation.n_items)]
            for name, bag in federation.items.items()
        },
        layers=LAYERS,
    )
    return federation, recommender, recommender.init(key(1, 0, "init")), problem


def tasks_of(people: list[int], how: Instances = INSTANCES, **more: Any) -> list[PackedTask]:
    federation = setting()[0]
    clients = federation.take(np.array(people))
    rest = {"n_items": federation.n_items, "seed": 3, "round_index": 7, **more}
    return pack_tasks(clients, instances=how, support_share=0.5, **rest)


def instances_at(client: PackedClient, places: range) -> list[Instance]:
    return [
        Instance(
            item=int(client.rows[client.item[i]]),
            target=float(client.target[i]),
            context={name: values_of(bag, i) for name, bag in client.context.items()},
        )
        for i in places
    ]


def person_of(task: PackedTask) -> Person:
    client = task.client
    return (
        {name: values_of(bag, 0) for name, bag in client.features.items()},
        instances_at(client, range(int(task.support))),
        instances_at(client, range(int(task.begin), int(task.end))),
    )


def loss_of(p: Arrays, features: dict[str, Any], instance: Instance) -> float:
    """The cross-entropy of one instance, from the equations of the network."""
    problem = setting()[3]

    def joined(values: list[Any]) -> npt.NDArray[np.float64]:
        return np.concatenate([embed(p[name], value) for name, value in values])

    items = [("embed/item", [(instance.item, 1.0)])]
    items += [(n, problem.item_features[n][instance.item]) for n in problem.item_tables]
    user = joined([(name, features[name]) for name in problem.user_tables]) @ p["user/in"]
    moment = joined([(name, instance.context[name]) for name in problem.context_tables])
    u = np.maximum(user + moment @ p["context/in"] + p["user/bias"], 0)
    v = np.maximum(joined(items) @ p["item/in"] + p["item/bias"], 0)
    x = np.maximum(u @ p["mlp/0/user"] + v @ p["mlp/0/item"] + p["mlp/0/bias"], 0)
    x = np.maximum(x @ p["mlp/1/weight"] + p["mlp/1/bias"], 0)
    score = float((x @ p["out/weight"] + p["out/bias"])[0])
    return float(np.logaddexp(0, score) - instance.target * score)


def adapted(p: Arrays, person: Person, steps: int) -> Arrays:
    features, support, _ = person
    update = train_client(
        p,
        setting()[3],
        features,
        support,
        learning_rate=RATE,
        epochs=steps,
        batch_size=len(support),
    )
    return {name: p[name] + update[name] for name in p}


def query_loss(p: Arrays, person: Person, steps: int) -> float:
    """L_query(θ_k(θ)), all in 64 bits by plain loops."""
    own = adapted(p, person, steps)
    return float(np.mean([loss_of(own, person[0], one) for one in person[2]]))


def sent_by(task: PackedTask, **more: Any) -> Arrays:
    """Return what the device sends, with whole tables."""
    federation, recommender, params, _ = setting()
    how = {"inner_steps": 1, "batch_size": BATCH, "second_order": True, **more}
    local = local_maml(recommender, learning_rate=RATE, **how)
    update = dict(jax.jit(local)(params, dict(federation.items), task).update)
    rows = np.zeros((federation.n_items, 3))
    real = task.rows < federation.n_items
    rows[task.rows[real]] = update.pop("embed/item")[real]
    return {"embed/item": rows, **{name: np.asarray(v, np.float64) for name, v in update.items()}}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_meta_gradient_is_that_of_finite_differences(steps: int) -> None:
    """Along random directions in every single parameter array.

    A first-order gradient is far outside of the tolerance.
    """
    start = {name: np.asarray(v, np.float64) for name, v in setting()[2].items()}
    draw, width = np.random.default_rng(0), 1e-6
    second, first, truth = [], [], []
    for task in tasks_of([5, 12, 20]):
        person = person_of(task)
        found = sent_by(task, inner_steps=steps)
        simple = sent_by(task, inner_steps=steps, second_order=False)
        for name, value in start.items():
            along = draw.normal(size=value.shape)
            ends = [
                query_loss({**start, name: value + side * width * along}, person, steps)
                for side in (1, -1)
            ]
            truth.append((ends[0] - ends[1]) / (2 * width))
            second.append(-(found[name] * along).sum())
            first.append(-(simple[name] * along).sum())
    size = np.abs(truth).max()
    assert size > 0.02
    np.testing.assert_allclose(second, truth, rtol=1e-3, atol=2e-4 * size)
    assert np.abs(np.array(first) - truth).max() > 0.05 * size


def test_first_order_is_the_gradient_where_adaptation_ended() -> None:
    start = {name: np.asarray(v, np.float64) for name, v in setting()[2].items()}
    (task,) = tasks_of([5])
    person = person_of(task)
    own = adapted(start, person, 2)
    slope = {name: np.zeros_like(value) for name, value in start.items()}
    for one in person[2]:
        add_slope(own, setting()[3], person[0], one, 1 / len(person[2]), slope)
    found = sent_by(task, inner_steps=2, second_order=False)
    for name, value in slope.items():
        np.testing.assert_allclose(found[name], -value, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_how_much_is_computed_at_a_time_changes_nothing() -> None:
    (few,), (many,) = (tasks_of([5], replace(INSTANCES, batch_size=size)) for size in (3, 64))
    one, other = sent_by(few, batch_size=3), sent_by(many, batch_size=64)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=1e-6, err_msg=name)


def test_a_step_over_all_data_is_one_step_along_the_mean() -> None:
    """Two epochs are two steps, and no more than `max_steps` are taken."""
    federation, recommender, params, _ = setting()
    start = {name: np.asarray(v, np.float64) for name, v in params.items()}
    (task,) = tasks_of([5])
    client = task.client._replace(size=task.support)
    person = person_of(task)
    for epochs, most, steps in [(2, None, 2), (2, 1, 1)]:
        local = local_sgd(
            recommender,
            learning_rate=RATE,
            epochs=epochs,
            batch_size=BATCH,
            max_steps=most,
            whole_batch=True,
        )
        found = jax.jit(local)(params, dict(federation.items), client).update
        wanted = adapted(start, person, steps)
        for name in ("out/weight", "item/in", "embed/user.town"):
            change = wanted[name] - start[name]
            np.testing.assert_allclose(found[name], change, atol=1e-5, err_msg=name)


# --- support and query ---------------------------------------------------------------------------


def test_every_line_is_in_one_part_and_a_negative_is_where_its_like_is() -> None:
    federation = setting()[0]
    people = [5, 9, 12]
    clients = federation.take(np.array(people))
    asked = query_lines(clients, 0.5, seed=3, round_index=7)
    for k, task in enumerate(tasks_of(people)):
        lines = np.arange(clients.offsets[k], clients.offsets[k + 1])
        _, support, query = person_of(task)
        for part, inside in ((support, ~asked[lines]), (query, asked[lines])):
            own = lines[inside]
            mine = set(clients.item[lines].tolist())
            seen = sorted(one.item for one in part if one.item in mine)
            assert seen == sorted(clients.item[own].tolist())
            drawn = [one for one in part if one.item not in mine]
            likes = own[clients.liked[own]]
            assert len(drawn) == 2 * len(likes)
            # A negative has the context of its like, and contexts differ.
            speeds = sorted(one.context["embed/context.speed"][0][1] for one in drawn)
            wanted = [clients.context["embed/context.speed"].weights[i, 0] for i in likes]
            np.testing.assert_allclose(speeds, sorted(2 * wanted), rtol=1e-6)


def test_the_split_is_of_the_share_and_depends_on_the_person_alone() -> None:
    federation = setting()[0]
    split = partial(query_lines, seed=3, round_index=7)
    alone = split(federation.take(np.array([9])), 0.25)
    clients = federation.take(np.array([5, 9, 0]))
    among = split(clients, 0.25)
    np.testing.assert_array_equal(among[clients.owner == 1], alone)
    assert alone.sum() == len(alone) - np.floor(0.25 * len(alone) + 0.5)
    later = query_lines(federation.take(np.array([9])), 0.25, seed=3, round_index=8)
    assert (later != alone).any()


@pytest.mark.slow
def test_who_cannot_be_split_sends_nothing() -> None:
    """One line, or no like in the query: her device has nothing to judge its adaptation by."""
    federation = setting()[0]
    clients = federation.take(np.array([0, 5]))
    unhappy = replace(clients, liked=np.zeros_like(clients.liked))
    for data in (clients, unhappy):
        task = pack_tasks(data, 7, instances=INSTANCES, support_share=0.5, n_items=60, seed=3)[0]
        assert int(task.size) == 0
        assert not any(value.any() for value in sent_by(task).values())
    assert int(tasks_of([5])[0].size) > 0


def test_who_cannot_be_split_is_counted() -> None:
    data = privrec.load(DATA)

    def take(positions: npt.NDArray[Any]) -> Any:
        found = data.take(positions)
        return replace(found, liked=found.liked & (found.owner > 2))

    less = replace(data, take=take)
    prepared = prepare(configure("nn-self", DATA, small("nn-self")), less)
    (phase,) = prepared.stages()
    assert isinstance(phase, Phase)
    _, report = round_of(less, phase, phase.start(None))
    assert report.clients == 8
    assert report.skipped >= 3


def test_every_shape_is_compiled_before_the_first_round() -> None:
    federation = setting()[0]
    tasks = tasks_of(list(range(40)))
    empty = empty_tasks(tasks[0], federation.largest, INSTANCES, federation.n_items)
    ready, needed = ({str(jax.tree.map(np.shape, one)) for one in some} for some in (empty, tasks))
    assert len(needed) > 1
    assert needed <= ready


def test_items_ids_alone_rank_the_same_in_every_moment() -> None:
    """The data has moments; without them there is one line of scores for all tested lines."""
    data = mixed_federation()
    settings = {**small("fofl-self"), "validation_share": 0.0}
    prepared = prepare(configure("fofl-self", data.name, settings), data)
    (stage,) = prepared.stages()
    scorer = prepared.ranker(stage.start(None).params)
    people = data.take(np.arange(3))
    assert {scores.shape[0] for scores in scorer(people, people)} == {1}
