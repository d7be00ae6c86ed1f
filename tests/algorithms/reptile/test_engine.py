"""The compiled engine against the slow loop, on any mix of features, sizes and devices."""

import math
import re
from functools import cache

import jax
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.algorithms.reptile.dssm import dssm
from privrec.algorithms.reptile.local import apply_update, local_sgd
from privrec.algorithms.reptile.pack import (
    Instances,
    PackedClient,
    bucket,
    buckets,
    dummy,
    pack,
)
from privrec.core.model import ITEM_TABLE, Recommender
from privrec.core.training import LocalTrain, jit_in_place
from privrec.data.clients import Clients, grouped
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest
from privrec.data.schema import Bag
from privrec.data.tables import Tables, to_federation
from privrec.seeds import key, rng
from privrec.simulate.lanes import RunCohort, assign, cohort_runner, warm_up
from slow_loop import Instance, Problem, train_client, values_of
from tiny import late

RATE, EPOCHS, BATCH, LAYERS = 0.2, 2, 12, 2
INSTANCES = Instances(negatives=2, batch_size=BATCH, dislike_target=0.3)


@cache
def mixed_federation(context: bool = True, features: bool = True) -> Federation:
    """40 people with 1 to 40 interactions and every kind of feature, some of them missing."""
    draw = rng(0, 0, "mixed federation")
    n_users, n_items = 40, 60
    sizes = np.concatenate([[1, 2, 3, 4, 5, 40], draw.integers(1, 30, n_users - 6)])
    user = np.repeat(np.arange(n_users), sizes)
    item = np.concatenate([draw.choice(n_items, size, replace=False) for size in sizes])
    lines = pl.DataFrame(
        {
            "user": user,
            "item": item,
            "value": draw.integers(1, 6, len(user)),
            "hour": draw.choice(["morning", "noon", "night"], len(user)),
            "speed": draw.normal(size=len(user)),
        }
    )
    users = pl.DataFrame({"id": np.arange(n_users)})
    items = pl.DataFrame({"id": np.arange(n_items)})
    if features:
        users = users.with_columns(
            town=pl.Series([f"t{k % 5}" if k % 7 else None for k in range(n_users)]),
            height=pl.Series([float(k) if k % 6 else None for k in range(n_users)]),
            hobbies=pl.Series([[f"h{j}" for j in range(k % 4)] for k in range(n_users)]),
        )
        items = items.with_columns(
            genres=pl.Series([[f"g{j}" for j in range(k % 3)] for k in range(n_items)]),
            price=pl.Series(draw.normal(size=n_items)),
        )
    manifest = Manifest(
        name="mixed",
        value="value",
        positive_above=3.0,
        context=("hour", "speed") if context else (),
    )
    return to_federation(Tables(manifest=manifest, interactions=lines, users=users, items=items))


@cache
def model(federation: Federation, rating: bool = False) -> tuple[Recommender, LocalTrain]:
    recommender = dssm(
        federation.schema,
        federation.n_items,
        embedding_size=3,
        tower_size=5,
        hidden=(6, 4),
        target="rating" if rating else "implicit",
        embedding_scale=0.5,
    )
    local = local_sgd(recommender, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH)
    return recommender, local


def slow_sum(
    federation: Federation,
    params: dict[str, jax.Array],
    packed: list[PackedClient],
    *,
    rating: bool = False,
) -> dict[str, np.ndarray]:
    schema = federation.schema
    problem = Problem(
        user_tables=[f.table for f in schema.of("user")],
        context_tables=[f.table for f in schema.of("context")],
        item_tables=[f.table for f in schema.of("item")],
        item_features={
            name: [values_of(bag, k) for k in range(federation.n_items)]
            for name, bag in federation.items.items()
        },
        layers=LAYERS,
        rating=rating,
    )
    start = {name: np.asarray(value, np.float64) for name, value in params.items()}
    total = {name: np.zeros_like(value) for name, value in start.items()}
    for client in packed:
        instances = [
            Instance(
                item=int(client.rows[client.item[i]]),
                target=float(client.target[i]),
                context={name: values_of(bag, i) for name, bag in client.context.items()},
            )
            for i in range(int(client.size))
        ]
        update = train_client(
            start,
            problem,
            {name: values_of(bag, 0) for name, bag in client.features.items()},
            instances,
            learning_rate=RATE,
            epochs=EPOCHS,
            batch_size=BATCH,
        )
        for name in total:
            total[name] += update[name]
    return total


def packed(
    federation: Federation, people: list[int], how: Instances = INSTANCES
) -> list[PackedClient]:
    clients = federation.take(np.array(people))
    return pack(clients, how, n_items=federation.n_items, seed=3, round_index=7)


@pytest.mark.parametrize(
    ("n_devices", "context", "features"),
    [
        (2, True, True),
        late(1, True, True),
        late(2, False, True),
        late(2, True, False),
        late(2, False, False),
    ],
)
def test_the_engine_equals_the_slow_loop(n_devices: int, context: bool, features: bool) -> None:
    federation = mixed_federation(context, features)
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    devices = jax.local_devices()[:n_devices]
    cohort = packed(federation, list(range(10)))
    found = cohort_runner(local, "l2", dict(federation.items), devices)(params, cohort, math.inf)
    expected = slow_sum(federation, params, cohort)
    assert max(abs(value).max() for value in expected.values()) > 0.1
    for name, value in expected.items():
        np.testing.assert_allclose(found.update[name], value, atol=1e-5, err_msg=name)


def test_a_value_that_a_person_has_twice_counts_with_both_weights() -> None:
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    (client,) = packed(federation, [3])
    # Values 1, 0, 1, and one that is missing, whose code is that of a value that is there.
    codes = np.array([[1, 0, 1, 0]], np.int32)
    twice = Bag(codes, np.array([[0.5, 0.25, 0.25, 0.0]], np.float32))
    client = client._replace(features={**client.features, "embed/user.hobbies": twice})
    found = cohort_runner(local, "l2", dict(federation.items))(params, [client], math.inf)
    expected = slow_sum(federation, params, [client])
    assert abs(expected["embed/user.hobbies"][:2]).max() > 1e-3
    for name, value in expected.items():
        np.testing.assert_allclose(found.update[name], value, atol=1e-5, err_msg=name)


def test_a_step_copies_no_weights() -> None:
    """What the loop of the compiled training copies is smaller than any layer."""
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    (client,) = packed(federation, [3])
    compiled = jit_in_place(local).lower(params, dict(federation.items), client).compile()
    text = compiled.as_text() or ""
    bodies = [
        part.group()
        for name in re.findall(r" while\(.*body=%([\w.]+)", text)
        for part in re.finditer(rf"^%{re.escape(name)} .*?^}}", text, re.MULTILINE | re.DOTALL)
    ]
    # The other loops are short: they change single rows.
    steps = max(bodies, key=len)
    assert "dot(" in steps or "ynn" in steps
    copied = re.findall(r"= f32\[([\d,]+)\]\S* copy\(", steps)
    assert [shape for shape in copied if math.prod(map(int, shape.split(","))) > 12] == []


def test_ratings_train_a_linear_output() -> None:
    federation = mixed_federation()
    recommender, local = model(federation, rating=True)
    params = recommender.init(key(0, 0, "init"))
    how = Instances(negatives=0, batch_size=BATCH, ratings=True)
    cohort = packed(federation, [0, 1, 2, 3], how)
    assert {float(t) for c in cohort for t in c.target[: int(c.size)]} <= {1.0, 2.0, 3.0, 4.0, 5.0}
    found = cohort_runner(local, "l2", dict(federation.items))(params, cohort, math.inf)
    for name, value in slow_sum(federation, params, cohort, rating=True).items():
        np.testing.assert_allclose(found.update[name], value, atol=1e-5, err_msg=name)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.permutations(range(8)), st.integers(1, 8))
def test_the_order_of_a_cohort_does_not_matter(order: list[int], size: int) -> None:
    federation = mixed_federation()
    recommender, _ = model(federation)
    params = recommender.init(key(0, 0, "init"))
    run = _runner(federation)
    people = sorted(order[:size])
    one, other = (
        run(params, packed(federation, people), math.inf),
        run(params, packed(federation, order[:size]), math.inf),
    )
    for name in params:
        np.testing.assert_allclose(one.update[name], other.update[name], atol=1e-6)


def test_a_client_without_data_sends_zero() -> None:
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    clients = federation.take(np.array([5]))
    nothing = clients.keep(np.zeros(len(clients.item), np.bool_))
    (client,) = pack(nothing, INSTANCES, n_items=federation.n_items, seed=0, round_index=0)
    result = jax.jit(local)(params, dict(federation.items), client)
    assert all(float(abs(value).max()) == 0 for value in result.update.values())
    assert float(result.loss) == 0


def test_only_the_rows_a_client_needs_are_touched() -> None:
    federation = mixed_federation()
    recommender, _ = model(federation)
    params = recommender.init(key(0, 0, "init"))
    (client,) = packed(federation, [2])
    total = _runner(federation)(params, [client], math.inf).update[ITEM_TABLE]
    touched = np.flatnonzero(np.abs(np.asarray(total)).max(1))
    needed = set(client.rows[client.rows < federation.n_items])
    assert set(touched) <= needed
    assert len(touched) > len(needed) / 2  # a dead ReLU may leave a row at exactly zero


def test_what_a_client_sends_does_not_grow_with_the_catalogue() -> None:
    """The compiled program of one client has no array as long as the catalogue but the tables."""
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    (client,) = packed(federation, [2])
    result = jax.eval_shape(local, params, dict(federation.items), client)
    assert result.update[ITEM_TABLE].shape[0] == len(client.rows) < federation.n_items


def test_apply_update_puts_rows_back_in_their_place() -> None:
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    (client,) = packed(federation, [4])
    update = jax.jit(local)(params, dict(federation.items), client).update
    own = apply_update(params, client, update)
    total = _runner(federation)(params, [client], math.inf).update
    for name in params:
        np.testing.assert_allclose(own[name], params[name] + total[name], atol=1e-6)


@pytest.mark.slow
def test_nothing_compiles_after_the_warm_up(caplog: pytest.LogCaptureFixture) -> None:
    federation = mixed_federation()
    recommender, local = model(federation)
    params = recommender.init(key(0, 0, "init"))
    run = cohort_runner(local, "l2", dict(federation.items))
    (example,) = packed(federation, [0])
    sizes = buckets(federation.largest, INSTANCES)
    warm_up(run, params, [dummy(example, size, federation.n_items) for size in sizes])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for people in ([0], [1, 2, 3], list(range(20)), [5]):
            run(params, packed(federation, people), math.inf)
    compiled = [r.getMessage() for r in caplog.records if "Finished XLA" in r.getMessage()]
    assert compiled == []


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_buckets_hold_whole_batches(size: int, batch_size: int) -> None:
    how = Instances(negatives=0, batch_size=batch_size)
    cap = bucket(size, batch_size)
    assert cap >= size
    assert cap % batch_size == 0
    assert cap in buckets(max(size, 1), how)
    assert cap <= max(2 * batch_size, 2 * (size + batch_size))


@given(st.lists(st.integers(0, 1000), max_size=50), st.integers(1, 5))
def test_lanes_share_the_work(loads: list[int], n_lanes: int) -> None:
    lanes = assign(loads, n_lanes)
    assert sorted(k for lane in lanes for k in lane) == list(range(len(loads)))
    totals = [sum(loads[k] for k in lane) for lane in lanes]
    # Graham 1969: heaviest first is at most 4/3 of the best, which is at least the mean.
    best = max(sum(loads) / n_lanes, max(loads, default=0))
    heavy = sorted(loads, reverse=True)
    if len(heavy) > n_lanes:
        best = max(best, heavy[n_lanes - 1] + heavy[n_lanes])
    assert max(totals) <= 4 / 3 * best + 1e-9


@given(st.lists(st.integers(0, 400), max_size=300), st.integers(0, 2**32))
def test_words_order_what_owners_group(owners: list[int], seed: int) -> None:
    owner = np.array(owners, np.int64)
    words = np.random.default_rng(seed).permutation(len(owner)).astype(np.uint64)
    slow = sorted(range(len(owner)), key=lambda k: (owners[k], words[k]))
    assert grouped(owner, words).tolist() == slow


def test_packing_keeps_every_instance_with_its_context() -> None:
    federation = mixed_federation()
    clients = federation.take(np.array([3, 9]))
    for k, client in enumerate(packed(federation, [3, 9])):
        own = slice(int(clients.offsets[k]), int(clients.offsets[k + 1]))
        seen = _lines(clients, own)
        found = [
            (
                int(client.rows[client.item[i]]),
                tuple(tuple(values_of(bag, i)) for bag in client.context.values()),
                round(float(client.target[i]), 6),
            )
            for i in range(int(client.size))
        ]
        real = [line for line in found if line[0] in set(clients.item[own].tolist())]
        assert sorted(real) == sorted(seen)
        sampled = [line for line in found if line not in real]
        assert len(sampled) == 2 * int(clients.liked[own].sum())
        liked_contexts = sorted(line[1] for line in seen if line[2] == 1.0)
        assert sorted(line[1] for line in sampled) == sorted(liked_contexts * 2)


@cache
def _runner(federation: Federation) -> RunCohort:
    return cohort_runner(model(federation)[1], "l2", dict(federation.items))


def _lines(clients: Clients, own: slice) -> list[tuple[int, tuple[object, ...], float]]:
    return [
        (
            int(clients.item[i]),
            tuple(tuple(values_of(bag, i)) for bag in clients.context.values()),
            1.0 if clients.liked[i] else 0.3,
        )
        for i in range(own.start, own.stop)
    ]
