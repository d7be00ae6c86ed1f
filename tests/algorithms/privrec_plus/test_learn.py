"""The learned part of the tower against automatic derivatives, one client at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.algorithms.privrec_plus import softmax as learn
from privrec.algorithms.privrec_plus.rows import rows_of
from privrec.algorithms.privrec_plus.scoring import (
    FLOOR,
    LEARNED_BIAS,
    LEARNED_OUT,
    LEARNED_TRUST,
    Layout,
    forward,
    layout_of,
    learned_names,
)
from privrec.algorithms.privrec_plus.softmax import (
    Histories,
    fresh,
    hide_half,
    histories,
    logits_of,
)
from privrec.data.clients import Clients
from privrec.data.sources import load
from privrec.types import Params
from tiny import DATA

ITEMS, SIZE = 7, 3
LAYOUT = Layout(n_items=ITEMS)

# Compiled, as training has them: one program, where each step alone would be compiled too.
bounded_sum = jax.jit(learn.bounded_sum, static_argnums=1)
losses_of = jax.jit(learn.losses_of, static_argnums=1)
slope_of = jax.jit(jax.grad(lambda params, one: learn.losses_of(params, LAYOUT, one).sum()))


def some_batch(seed: int, clients: int) -> Histories:
    """Clients whose rows and targets have nothing in common, the last one without a target."""
    draw = np.random.default_rng(seed)
    kind = draw.integers(0, 4, (clients, ITEMS))  # liked, disliked, hidden like, unseen
    row = np.concatenate([kind == 0, kind == 1], axis=1).astype(np.float32)
    target = (kind == 2).astype(np.float32)
    target[-1] = 0
    target /= np.maximum(target.sum(1, keepdims=True), 1)
    return Histories(row, draw.normal(0.1, 0.2, (clients, ITEMS)).astype(np.float32), target)


def some_params(seed: int) -> dict[str, jax.Array]:
    params = fresh(jax.random.key(seed), LAYOUT, SIZE, 0.7)
    return {**params, LEARNED_BIAS: jax.random.normal(jax.random.key(seed + 1), (ITEMS,))}


def slow_sum(
    params: Params, batch: Histories, clip_norm: float
) -> tuple[dict[str, npt.NDArray[np.float64]], int]:
    """Differentiate each client's loss separately, clip it as one vector, and add up."""
    total = {name: np.zeros(np.shape(value)) for name, value in params.items()}
    clipped = 0
    for k in range(len(batch.row)):
        one = Histories(*(part[k : k + 1] for part in batch))
        slope = slope_of(params, one)
        length = np.sqrt(sum(float(jnp.sum(value**2)) for value in slope.values()))
        bound = clip_norm * (1 - 1e-3)
        clipped += length > bound
        for name, value in slope.items():
            total[name] -= np.asarray(value) * min(1.0, bound / max(length, 1e-30))
    return total, clipped


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000), clients=st.integers(1, 6), clip=st.sampled_from([0.05, 1.0, 9e9])
)
def test_a_cohorts_sum_is_that_of_its_clients_each_differentiated_and_bounded(
    seed: int, clients: int, clip: float
) -> None:
    params, batch = some_params(seed), some_batch(seed, clients)
    found = bounded_sum(params, LAYOUT, batch, jnp.float32(clip))
    slow, clipped = slow_sum(params, batch, clip)
    assert set(found.update) == set(slow) == set(params)
    for name, value in slow.items():
        np.testing.assert_allclose(found.update[name], value, rtol=2e-4, atol=2e-6, err_msg=name)
    assert int(found.clipped) == clipped
    assert float(found.loss) == pytest.approx(
        float(losses_of(params, LAYOUT, batch).sum()), rel=1e-5
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1.0, 1e3, 1e18]))
def test_no_client_moves_the_sum_by_more_than_the_bound(seed: int, scale: float) -> None:
    params = {name: value * scale for name, value in some_params(seed).items()}
    for k in range(3):
        one = Histories(*(part[k : k + 1] for part in some_batch(seed, 4)))
        found = bounded_sum(params, LAYOUT, one, jnp.float32(0.5))
        length = np.sqrt(sum(np.sum(np.float64(value) ** 2) for value in found.update.values()))
        assert length <= 0.5
        assert int(found.dropped) in (0, 1)


def test_a_client_that_is_not_finite_is_dropped_and_spoils_nobody_else() -> None:
    params, batch = some_params(1), some_batch(1, 3)
    score = batch.score.copy()
    score[0, 0] = np.nan
    spoiled = bounded_sum(params, LAYOUT, batch._replace(score=score), jnp.float32(1.0))
    others = bounded_sum(params, LAYOUT, Histories(*(p[1:] for p in batch)), jnp.float32(1.0))
    assert int(spoiled.dropped) == 1
    for name, value in others.update.items():
        np.testing.assert_allclose(spoiled.update[name], value, rtol=1e-5, atol=1e-7)
    assert float(spoiled.loss) == pytest.approx(float(others.loss), rel=1e-5)


def test_padding_and_clients_without_a_target_change_nothing() -> None:
    params, batch = some_params(2), some_batch(2, 4)
    padded = Histories(*(np.concatenate([part, np.zeros_like(part)]) for part in batch))
    one, other = (bounded_sum(params, LAYOUT, b, jnp.float32(0.3)) for b in (batch, padded))
    for name, value in one.update.items():
        np.testing.assert_allclose(other.update[name], value, rtol=1e-5, atol=1e-7)
    assert int(one.clipped) == int(other.clipped)
    nobody = Histories(*(part[-1:] for part in batch))
    for value in bounded_sum(params, LAYOUT, nobody, jnp.float32(1.0)).update.values():
        assert not np.any(value)


def test_before_learning_the_order_is_that_of_the_closed_form() -> None:
    params = fresh(jax.random.key(0), LAYOUT, SIZE, 0.0)
    batch = some_batch(3, 5)
    logits = np.asarray(logits_of(params, LAYOUT, batch.row, batch.score))
    expected = 2 * np.log(np.maximum(batch.score, 0) + FLOOR)
    np.testing.assert_allclose(logits, expected, rtol=1e-5)


def test_logits_equal_a_slow_loop() -> None:
    params, batch = some_params(4), some_batch(4, 3)
    found = np.asarray(logits_of(params, LAYOUT, batch.row, batch.score))
    likes, dislikes = (np.asarray(params[name]) for name in learned_names(LAYOUT))
    for c in range(3):
        pooled, count = np.zeros(SIZE), 1
        for i in range(ITEMS):
            pooled += batch.row[c, i] * likes[i] + batch.row[c, ITEMS + i] * dislikes[i]
            count += int(batch.row[c, i] + batch.row[c, ITEMS + i])
        pooled = np.tanh(pooled / np.sqrt(count))
        for v in range(ITEMS):
            own = np.log(max(batch.score[c, v], 0) + FLOOR) * float(params[LEARNED_TRUST])
            own += float(pooled @ np.asarray(params[LEARNED_OUT])[v]) + float(
                params[LEARNED_BIAS][v]
            )
            assert found[c, v] == pytest.approx(own, rel=1e-4, abs=1e-5)


def test_a_phone_finds_the_same_logits_without_jax() -> None:
    params, batch = some_params(6), some_batch(6, 5)
    plain = {name: np.asarray(value) for name, value in params.items()}
    found = forward(plain, LAYOUT, batch.row, batch.score).logits
    assert isinstance(found, np.ndarray)
    expected = logits_of(params, LAYOUT, batch.row, batch.score)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_loss_is_over_what_the_client_does_not_have_yet() -> None:
    params, batch = some_params(5), some_batch(5, 6)
    logits = np.asarray(logits_of(params, LAYOUT, batch.row, batch.score), np.float64)
    found = np.asarray(losses_of(params, LAYOUT, batch))
    for c in range(6):
        open_ = [v for v in range(ITEMS) if not batch.row[c, v] and not batch.row[c, ITEMS + v]]
        whole = np.log(sum(np.exp(logits[c, v]) for v in open_)) if open_ else 0.0
        slow = sum(batch.target[c, v] * (whole - logits[c, v]) for v in open_)
        assert found[c] == pytest.approx(slow, rel=1e-4, abs=1e-5)


def test_what_is_shown_and_hidden_at_once_is_no_target() -> None:
    """A repeated item may be in both halves; it must not be a target then."""
    lines = 40
    clients = Clients(
        ids=np.arange(1),
        offsets=np.array([0, lines]),
        item=np.arange(lines, dtype=np.int32) % 3,
        value=np.ones(lines, np.float32),
        liked=np.ones(lines, np.bool_),
        time=np.arange(lines, dtype=np.float64),
        features={},
        context={},
    )
    shown, hidden = hide_half(clients, LAYOUT, seed=0, round_index=0)
    assert shown.toarray()[0, :3].tolist() == [1, 1, 1]
    assert not np.any(hidden.toarray())


def people(count: int) -> tuple[Clients, Layout]:
    data = load(DATA)
    return data.take(np.arange(count)), layout_of(data.schema, data.n_items)


def test_what_is_hidden_is_liked_and_not_shown() -> None:
    clients, layout = people(40)
    n = layout.n_items
    everything = rows_of(clients, layout).toarray()
    shown, hidden = hide_half(clients, layout, seed=0, round_index=3)
    row, target = shown.toarray(), hidden.toarray()
    known = row[:, :n] + row[:, n : 2 * n]
    assert not np.any((target > 0) & (known > 0))
    # Every line is on one side or the other, and only likes are targets.
    np.testing.assert_array_equal((row[:, :n] + target) > 0, everything[:, :n] > 0)
    share = target.sum() / everything[:, :n].sum()
    assert 0.4 < share < 0.6


def test_a_client_hides_the_same_in_any_company_and_something_else_in_another_round() -> None:
    clients, layout = people(30)
    _, together = hide_half(clients, layout, seed=0, round_index=3)
    for k in (0, 17):
        _, alone = hide_half(clients.take(np.array([k])), layout, seed=0, round_index=3)
        np.testing.assert_array_equal(alone.toarray()[0], together.toarray()[k])
    _, later = hide_half(clients, layout, seed=0, round_index=4)
    assert np.any(later.toarray() != together.toarray())


def test_targets_sum_to_one_or_to_nothing() -> None:
    clients, layout = people(30)
    shown, hidden = hide_half(clients, layout, seed=0, round_index=0)
    score = np.zeros((30, layout.n_items), np.float32)
    batch = histories(shown, hidden, score, 32)
    assert batch.row.shape == (32, layout.size)
    sums = batch.target.sum(1)
    some = np.asarray(hidden.sum(1)) > 0
    np.testing.assert_allclose(sums[:30], some, atol=1e-6)
    assert not np.any(sums[30:])
