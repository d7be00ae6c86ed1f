"""FedGNN on the device: the network, what a round hides, and what a device sends."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import privrec
from privrec.algorithms.fedgnn.graph import (
    FedGnnSettings,
    Graph,
    GraphClient,
    draw_others,
    fresh,
    items_of,
    pack,
    person_vector,
    scores,
    shapes,
)
from privrec.algorithms.fedgnn.recipe import (
    hidden_loss,
    local_gradient,
    locally_noised,
    pseudo_rows,
)
from privrec.algorithms.recipes import configure
from privrec.core.model import ITEM_TABLE
from privrec.data.clients import Clients
from privrec.errors import SettingsError
from privrec.testing import small, toy
from privrec.types import Leaf
from tiny import DATA

N_ITEMS, SIZE = 30, 3


def settings_of(**more: Any) -> FedGnnSettings:
    values = {"embedding_size": SIZE, "negatives": 5, "pseudo_items": 7, "neighbours": 0}
    found: FedGnnSettings = configure("fedgnn", "toy", {"cohort": 1, **values, **more})
    return found


def somebody() -> Clients:
    """Nine likes, four dislikes, and one item that she used three times."""
    lines = [(0, item, 5.0) for item in (1, 4, 6, 9, 11, 12, 20, 21, 25)]
    lines += [(0, item, 1.0) for item in (2, 3, 15, 28)] + [(0, 9, 5.0)] * 2
    return toy(lines, n_items=N_ITEMS).take(np.array([0]))


def packed(round_index: int = 0, **more: Any) -> GraphClient:
    made = settings_of(**more)
    (client,) = pack(made, N_ITEMS, {}, somebody(), round_index)
    return client


def sends(client: GraphClient, clip: float, noise: float) -> dict[str, Leaf]:
    """Return what a device sends, with parameters that are the same in all tests."""
    found = jax.jit(local_gradient(clip=clip, noise=noise))(random_params(), {}, client).update
    return {name: np.asarray(leaf) for name, leaf in found.items()}


def random_params(seed: int = 0) -> dict[str, Leaf]:
    draw = np.random.default_rng(seed)
    wanted = shapes(N_ITEMS, SIZE)
    return {name: draw.normal(0, 0.7, shape).astype(np.float32) for name, shape in wanted.items()}


# --- the network ---------------------------------------------------------------------------------


def leaky(x: float) -> float:
    return x if x > 0 else 0.2 * x


def slow_person(params: dict[str, Leaf], table: Leaf, graph: Graph) -> Leaf:
    """The same by loops over nodes and edges, as the paper has it."""
    nodes = [k for k in range(len(graph.items)) if graph.real[k]]
    vector = {k: table[graph.items[k]][:-1].astype(float) for k in nodes}
    likes = [k for k in nodes if graph.liked[k]]
    person = sum((vector[k] for k in likes), np.zeros(SIZE)) / max(len(likes), 1)
    after = {}
    for k in nodes:
        around = [(0, vector[k]), (1, person)]
        around += [
            (2, graph.neighbours[k, j]) for j in range(graph.known.shape[1]) if graph.known[k, j]
        ]
        weights = [
            math.exp(
                leaky(
                    params["item/receiver"] @ vector[k]
                    + params["item/sender"][kind] @ other
                    + params["item/kind"][kind]
                )
            )
            for kind, other in around
        ]
        after[k] = sum(
            (w / sum(weights) * other @ params["item/message"][kind]
             for w, (kind, other) in zip(weights, around, strict=True)),
            np.zeros(SIZE),
        )  # fmt: skip
    kinds = {k: 0 if graph.liked[k] else 1 for k in nodes}
    attention = {
        k: math.exp(
            leaky(
                params["person/receiver"] @ person
                + params["person/sender"][kinds[k]] @ after[k]
                + params["person/kind"][kinds[k]]
                + params["person/often"] * graph.often[k]
            )
        )
        for k in nodes
    }
    total = sum(attention.values())
    found = sum(
        (attention[k] / total * after[k] @ params["person/message"][kinds[k]] for k in nodes),
        np.zeros(SIZE),
    )
    level, power = params["person/gain"]
    return found * math.exp(level) * len(nodes) ** power


def tiny_graph() -> Graph:
    draw = np.random.default_rng(1)
    return Graph(
        items=np.array([4, 9, 2, 0, 0], np.int32),
        liked=np.array([True, True, False, True, False]),
        often=np.array([0.0, 1.1, 0.0, 5.0, 5.0], np.float32),
        real=np.array([True, True, True, False, False]),
        neighbours=draw.normal(size=(5, 2, SIZE)).astype(np.float32),
        known=np.array([[True, True], [True, False], [False, False], [True, True], [True, True]]),
    )


def test_the_network_is_the_loop_over_edges() -> None:
    params, graph = random_params(), tiny_graph()
    found = person_vector(params, params[ITEM_TABLE], graph)
    wanted = slow_person(params, params[ITEM_TABLE], graph)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    every = scores(found, params[ITEM_TABLE])
    np.testing.assert_allclose(every[7], params[ITEM_TABLE][7] @ [*wanted, 1.0], rtol=2e-5)


@pytest.mark.slow
def test_a_graph_without_items_is_nobody() -> None:
    graph = tiny_graph()._replace(real=np.zeros(5, np.bool_))
    params = random_params()
    slope = jax.grad(lambda p: person_vector(p, p[ITEM_TABLE], graph).sum())(params)
    assert not person_vector(params, params[ITEM_TABLE], graph).any()
    assert all(np.isfinite(leaf).all() for leaf in slope.values())


@pytest.mark.slow
def test_before_training_a_person_points_to_the_mean_of_her_likes() -> None:
    params = fresh(jax.random.key(0), N_ITEMS, SIZE, 0.1)
    graph = tiny_graph()._replace(liked=np.array([True] * 5))
    found = person_vector(params, params[ITEM_TABLE], graph._replace(known=graph.known & False))
    mean = np.asarray(params[ITEM_TABLE][np.array([4, 9, 2]), :-1]).mean(0)
    np.testing.assert_allclose(
        found / np.linalg.norm(found), mean / np.linalg.norm(mean), rtol=1e-4
    )


# --- what a round hides --------------------------------------------------------------------------


def test_what_is_predicted_is_not_in_the_graph() -> None:
    seen = set()
    person = items_of(somebody(), 0)
    for round_index in range(8):
        client = packed(round_index)
        hidden = client.rows[client.target[: int(client.size)]]
        shown = client.rows[client.graph.items[client.graph.real]]
        unseen = client.rows[client.negative[: int(client.negatives)]]
        likes = set(person.ids[person.liked].tolist())
        assert set(hidden.tolist()) <= likes
        assert not set(hidden.tolist()) & set(shown.tolist())
        assert not set(unseen.tolist()) & set(person.ids.tolist())
        assert len(hidden) == 5  # Half of nine, rounded up.
        liked = client.rows[client.graph.items[client.graph.real & client.graph.liked]]
        assert set(hidden.tolist()) | set(liked.tolist()) == likes
        seen.add(tuple(sorted(hidden.tolist())))
    assert len(seen) > 4  # Another half in another round.


@pytest.mark.slow
def test_the_gradient_of_a_hidden_like_goes_towards_the_person() -> None:
    """By finite differences of the loss, and the loss by its formula."""
    client, params = packed(), random_params()
    touched = {**params, ITEM_TABLE: params[ITEM_TABLE][np.minimum(client.rows, N_ITEMS - 1)]}
    person = slow_person(params, touched[ITEM_TABLE], client.graph)
    every = touched[ITEM_TABLE] @ [*person, 1.0]
    others = np.exp(every[client.negative[: int(client.negatives)]]).sum()
    hidden = every[client.target[: int(client.size)]]
    wanted = np.sum(np.log(np.exp(hidden) + others) - hidden)
    np.testing.assert_allclose(hidden_loss(touched, client), wanted, rtol=1e-4)
    sent = sends(client, clip=1e6, noise=0.0)
    row, step = int(client.target[0]), 1e-2
    for column in range(SIZE + 1):
        tables = [np.array(touched[ITEM_TABLE]) for _ in range(2)]
        tables[0][row, column] += step
        tables[1][row, column] -= step
        up, down = (
            float(hidden_loss({**touched, ITEM_TABLE: jnp.asarray(table)}, client))
            for table in tables
        )
        np.testing.assert_allclose(
            -(up - down) / 2 / step, sent[ITEM_TABLE][row, column], rtol=0.02, atol=2e-3
        )
    # The network itself is trained too: every dense array, along a direction of its own.
    dense = [name for name in params if name != ITEM_TABLE]
    assert dense
    for place, name in enumerate(dense):
        way = np.random.default_rng(place).standard_normal(np.shape(params[name]))
        up, down = (
            float(hidden_loss({**touched, name: jnp.asarray(params[name] + side * way)}, client))
            for side in (step, -step)
        )
        along = float((np.asarray(sent[name]) * way).sum())
        np.testing.assert_allclose(-(up - down) / 2 / step, along, rtol=0.05, atol=5e-3)


# --- what a device sends -------------------------------------------------------------------------


def test_rows_of_items_that_she_never_touched_are_sent_too() -> None:
    client = packed()
    real = client.rows[client.rows < N_ITEMS]
    used = [client.target[: int(client.size)], client.negative[: int(client.negatives)]]
    used.append(client.graph.items[client.graph.real])
    touched = set(client.rows[np.concatenate(used)].tolist())
    pseudo = set(client.rows[client.pseudo].tolist())
    own = set(items_of(somebody(), 0).ids.tolist())
    assert len(pseudo) == 7
    assert not pseudo & (touched | own)
    assert pseudo | touched == set(real.tolist())
    sent = sends(client, clip=10.0, noise=0.0)[ITEM_TABLE]
    assert np.abs(sent[client.pseudo]).min(1).max() > 0
    none = packed(pseudo_items=0)
    assert set(none.rows[none.rows < N_ITEMS].tolist()) == touched


def test_others_are_different_unseen_and_all_equally_likely() -> None:
    person = items_of(somebody(), 0)
    for catalogue, count in ((N_ITEMS, 12), (400, 12), (N_ITEMS, 100)):
        drawn = [draw_others(0, k, person, count, catalogue) for k in range(200)]
        assert all(len(set(one.tolist())) == len(one) for one in drawn)
        assert {len(one) for one in drawn} == {min(count, catalogue - len(person.ids))}
        times = np.bincount(np.concatenate(drawn), minlength=catalogue)
        assert not times[person.ids].any()
        expected = len(drawn) * len(drawn[0]) / (catalogue - len(person.ids))
        rest = np.delete(times, person.ids)
        assert np.abs(rest - expected).max() < 5.5 * math.sqrt(expected)


def test_made_up_rows_have_the_mean_and_the_covariance_of_true_ones() -> None:
    draw = np.random.default_rng(2)
    rows = (draw.normal(size=(50, 4)) @ draw.normal(size=(4, 4)) + [1, 2, 3, 4]).astype(np.float32)
    true = np.arange(50) < 20
    found = pseudo_rows(jax.random.key(1), jnp.asarray(rows), jnp.asarray(true), 40_000)
    made = np.asarray(found, np.float64)
    np.testing.assert_allclose(made.mean(0), rows[true].mean(0), atol=0.1)
    wanted = np.cov(rows[true].T.astype(np.float64), bias=True)
    np.testing.assert_allclose(np.cov(made.T), wanted, atol=0.03 * np.abs(wanted).max())


@pytest.mark.slow
def test_every_number_that_is_sent_is_clipped_and_has_laplace_noise() -> None:
    """E|x| = scale and E x² = 2 scale² for Laplace noise; a normal one has another ratio."""
    client, clip, scale = packed(), 0.05, 0.3
    bare = sends(client, clip=clip, noise=0.0)
    real = client.rows < N_ITEMS
    raw = sends(client, clip=1e6, noise=0.0)
    for name, leaf in bare.items():
        assert np.abs(leaf).max() <= clip
        np.testing.assert_allclose(leaf, np.clip(raw[name], -clip, clip), atol=1e-7)
    assert max(float(np.abs(leaf).max()) for leaf in raw.values()) > clip
    moved: list[Leaf] = []
    for number in range(60):
        again = client._replace(key=np.array([number, 7], np.uint32))
        sent, plain = (sends(again, clip=clip, noise=noise) for noise in (scale, 0.0))
        assert not sent[ITEM_TABLE][~real].any()  # Padding is no row and is never sent.
        difference = {name: np.asarray(sent[name] - plain[name]) for name in sent}
        difference[ITEM_TABLE] = difference[ITEM_TABLE][real]
        assert all((leaf != 0).all() for leaf in difference.values())
        moved += [np.ravel(leaf) for leaf in difference.values()]
    noise = np.concatenate(moved)
    error = 1 / math.sqrt(len(noise))
    assert abs(np.abs(noise).mean() / scale - 1) < 5 * error
    assert abs(noise.mean() / scale) < 5 * math.sqrt(2) * error
    assert abs((noise**2).mean() / scale**2 - 2) < 5 * math.sqrt(20) * error


def test_no_two_parameters_have_the_same_noise() -> None:
    """Else the difference of two numbers that are sent would have none."""
    zeros = {name: jnp.zeros((4, SIZE)) for name in ("a", "b", "c")}
    sent = locally_noised(jax.random.key(3), zeros, clip=1.0, noise=0.5)
    values = np.concatenate([np.ravel(leaf) for leaf in sent.values()])
    assert len(np.unique(values)) == len(values)


def test_noise_is_anothers_in_another_round_and_for_another_person() -> None:
    data = privrec.load(DATA)
    made = configure("fedgnn", DATA, small("fedgnn"))
    people = data.take(np.arange(3))
    keys = {
        tuple(client.key.tolist())
        for round_index in range(4)
        for client in pack(made, data.n_items, {}, people, round_index)
    }
    assert len(keys) == 12


@pytest.mark.slow
def test_a_person_without_likes_sends_zeros() -> None:
    nobody = somebody().keep(~somebody().liked)
    (client,) = pack(settings_of(), N_ITEMS, {}, nobody, 0)
    sent = sends(client, clip=0.1, noise=0.2)
    assert client.size == 0
    assert not any(np.asarray(leaf).any() for leaf in sent.values())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"neighbours": 2, "mechanism": "gaussian", "epsilon": 8.0},
            "`neighbours` must be 0 under",
        ),
        ({"neighbours": 2, "rounds": 1}, "`rounds` must be >= 2 with neighbours"),
        ({"local_clip": 0.0}, "`local_clip` must be > 0"),
        ({"local_noise": -1.0}, "`local_noise` must be >= 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        configure("fedgnn", "toy", settings)
