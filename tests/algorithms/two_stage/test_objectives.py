"""The encoders and both objectives against a slow loop, finite differences and simple cases."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_views import N_ITEMS, VIEWS, views_of

from privrec.algorithms.two_stage.joint import rescaled
from privrec.algorithms.two_stage.objectives import (
    cut,
    encode_items,
    encode_sequences,
    init_encoders,
    item_losses,
    local_ssl,
    segment_losses,
    self_supervision,
)
from privrec.algorithms.two_stage.views import SequenceClient, empty_client
from privrec.core.model import ITEM_TABLE
from privrec.seeds import key

SIZE = 4
SEQUENCE = [5, 9, 2, 30, 31, 12, 17, 40, 8]


def model(seed: int = 0) -> dict[str, jax.Array]:
    encoders = init_encoders(key(seed, 0, "e"), SIZE)
    table = jax.random.normal(key(seed, 0, "t"), (N_ITEMS, SIZE))
    return {**encoders, ITEM_TABLE: table}


def own(params: dict[str, jax.Array], client: SequenceClient) -> dict[str, jax.Array]:
    return {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def slow_gru(params: dict[str, Any], vectors: np.ndarray) -> np.ndarray:
    """The equations of a GRU (Cho et al. 2014), one sequence, one step after another."""
    weight = {name: np.asarray(value, np.float64) for name, value in params.items()}
    state = np.zeros(SIZE)
    for vector in vectors:
        r_in, z_in, n_in = np.split(vector @ weight["gru/in"] + weight["gru/bias"], 3)
        r_st, z_st, n_st = np.split(state @ weight["gru/state"], 3)
        r, z = sigmoid(r_in + r_st), sigmoid(z_in + z_st)
        state = (1 - z) * np.tanh(n_in + r * n_st) + z * state
    return state


@pytest.mark.slow
def test_the_encoder_is_a_gru_and_padding_changes_nothing() -> None:
    params = model()
    items = jnp.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8], [9, 59, 59, 59, 59]])
    length = jnp.array([3, 5, 1])
    found = encode_sequences(params, items, length)
    for k in range(3):
        vectors = np.asarray(params[ITEM_TABLE], np.float64)[np.asarray(items[k, : length[k]])]
        np.testing.assert_allclose(found[k], slow_gru(params, vectors), rtol=1e-5, atol=1e-6)
    other = items.at[0, 3:].set(33).at[2, 1:].set(7)
    np.testing.assert_array_equal(found, encode_sequences(params, other, length))


def test_both_losses_equal_a_slow_loop() -> None:
    params = model()
    (client,) = views_of(SEQUENCE)
    mine = own(params, client)
    batch = cut(client, 0, len(client.truth))
    states = {
        name: encode_sequences(mine, getattr(batch, name), batch.length)
        for name in ("masked", "torn")
    }
    items = item_losses(mine, batch, states["masked"])
    segments = segment_losses(mine, batch, states["torn"])
    table = np.asarray(params[ITEM_TABLE], np.float64)
    encoded = np.asarray(encode_items(params, jnp.arange(N_ITEMS)), np.float64)
    for k in range(int(client.size)):
        width, span = int(client.length[k]), int(client.span[k])
        state = slow_gru(params, table[client.rows[client.masked[k, :width]]])
        among = [client.truth[k], *client.pool]
        scores = [state @ encoded[client.rows[index]] for index in among]
        assert items[k] == pytest.approx(
            -np.log(np.exp(scores[0]) / np.exp(scores).sum()), rel=1e-4
        )
        state = slow_gru(params, table[client.rows[client.torn[k, :width]]])
        scores = [
            state @ slow_gru(params, table[client.rows[segment[:span]]])
            for segment in client.segments[k]
        ]
        right = -np.log(np.exp(scores[0]) / np.exp(scores).sum())
        assert segments[k] == pytest.approx(right, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("item_weight", "segment_weight"), [(1.0, 0.0), (0.0, 1.0), (0.7, 0.4)])
def test_gradients_agree_with_finite_differences(item_weight: float, segment_weight: float) -> None:
    ssl = self_supervision(item_weight=item_weight, segment_weight=segment_weight)
    (client,) = views_of(SEQUENCE)
    batch = cut(client, 0, 4)
    mine = own(model(), client)
    with jax.enable_x64(True):
        exact = {name: jnp.asarray(np.asarray(value), jnp.float64) for name, value in mine.items()}
        loss, slope = jax.jit(ssl), jax.jit(jax.grad(ssl))(exact, batch)
        draw = np.random.default_rng(0)
        checked = 0
        for name, value in exact.items():
            for _ in range(4):
                place = tuple(draw.integers(side) for side in value.shape)
                h = 1e-6
                up, down = (
                    loss({**exact, name: value.at[place].add(sign * h)}, batch) for sign in (1, -1)
                )
                assert float(slope[name][place]) == pytest.approx(
                    float(up - down) / (2 * h), rel=1e-5, abs=1e-8
                )
                checked += abs(float(slope[name][place])) > 1e-6
    assert checked > 8


def test_views_beyond_the_real_ones_count_for_nothing() -> None:
    ssl = self_supervision(item_weight=1.0, segment_weight=1.0)
    (client,) = views_of([1, 2, 3])
    mine = own(model(), client)
    batch = cut(client, 0, 4)
    spoilt = batch._replace(
        truth=jnp.asarray(batch.truth).at[3].set(2), masked=jnp.asarray(batch.masked).at[3].set(1)
    )
    loss = jax.jit(ssl)
    assert float(loss(mine, batch)) == float(loss(mine, spoilt)) > 0


@pytest.mark.slow
def test_local_training_is_plain_sgd_over_the_views() -> None:
    ssl = self_supervision(item_weight=1.0, segment_weight=0.5)
    (client,) = views_of(SEQUENCE)
    params = model()
    local = local_ssl(ssl, learning_rate=0.3, epochs=2, batch_size=VIEWS.batch_size)
    found = jax.jit(local)(params, {}, client)
    current = own(params, client)
    slope_of = jax.jit(jax.grad(ssl))
    for _ in range(2):
        for begin in (0, 4):
            slope = slope_of(current, cut(client, begin, 4))
            current = {name: current[name] - 0.3 * slope[name] for name in current}
    start = own(params, client)
    for name in start:
        np.testing.assert_allclose(found.update[name], current[name] - start[name], atol=2e-6)


def test_somebody_without_views_sends_nothing() -> None:
    ssl = self_supervision(item_weight=1.0, segment_weight=1.0)
    local = local_ssl(ssl, learning_rate=0.3, epochs=1, batch_size=VIEWS.batch_size)
    found = jax.jit(local)(model(), {}, empty_client(VIEWS, 128, N_ITEMS))
    assert all(not np.any(value) for value in found.update.values())
    assert float(found.loss) == 0


@pytest.mark.slow
def test_training_on_the_views_finds_what_was_hidden() -> None:
    """The loss of held-out rounds falls well below a guess among six and among five."""
    views = replace(VIEWS, most=8)
    ssl = self_supervision(item_weight=1.0, segment_weight=1.0)
    local = jax.jit(local_ssl(ssl, learning_rate=0.3, epochs=3, batch_size=4))
    params = model()
    evaluate = jax.jit(lambda params, client: ssl(own(params, client), cut(client, 0, 8)))

    def held_out() -> float:
        return float(
            np.mean(
                [
                    evaluate(params, views_of(SEQUENCE, round_index=900 + k, views=views)[0])
                    for k in range(5)
                ]
            )
        )

    before = held_out()
    for round_index in range(150):
        (client,) = views_of(SEQUENCE, round_index=round_index, views=views)
        update = local(params, {}, client).update
        rows = params[ITEM_TABLE].at[client.rows].add(update.pop(ITEM_TABLE), mode="drop")
        params = {**{n: params[n] + update[n] for n in update}, ITEM_TABLE: rows}
    assert before > np.log(6)
    assert held_out() < 0.5 * before


def test_rescaled_vectors_are_encoded_as_before() -> None:
    params = model()
    found = rescaled(params, 0.1)
    assert float(jnp.std(found[ITEM_TABLE])) == pytest.approx(0.1, rel=1e-5)
    items = jnp.array([[1, 2, 3], [4, 5, 6]])
    length = jnp.array([3, 2])
    for one, other in (
        (encode_sequences(params, items, length), encode_sequences(found, items, length)),
        (encode_items(params, items), encode_items(found, items)),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
