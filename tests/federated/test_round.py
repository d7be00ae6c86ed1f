"""select and absorb: the server's side of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from privrec.errors import SettingsError
from privrec.federated.cohort import fixed_size
from privrec.federated.lanes import CohortSum
from privrec.federated.local import LocalResult
from privrec.federated.round import (
    FederatedAlgorithm,
    ServerOptimizer,
    ServerState,
    federated,
    server_optimizer,
)
from privrec.models.api import Recommender, implicit_loss
from privrec.seeds import key, rng

COHORT = 4


def algorithm(name: ServerOptimizer, rate: float) -> FederatedAlgorithm:
    nothing = Recommender(
        init=lambda key: {"w": jnp.array([1.0, -2.0])},
        user=lambda dense, rows, weights: jnp.zeros((1, 1)),
        item=lambda dense, rows, weights: jnp.zeros((1, 1)),
        head=lambda dense, user, item: jnp.zeros(1),
        loss=implicit_loss,
    )
    return federated(
        recommender=nothing,
        local=lambda params, catalogue, client: LocalResult({}, jnp.zeros(())),
        sampler=fixed_size(COHORT),
        server_optimizer=server_optimizer(name, rate),
    )


def play(made: FederatedAlgorithm, sums: list[list[float]]) -> list[np.ndarray]:
    state = made.init(key(0, 0, "init"))
    seen = []
    for total in sums:
        state = made.absorb(state, CohortSum({"w": jnp.array(total)}, jnp.zeros(())))
        seen.append(np.asarray(state.params["w"]))
    return seen


def test_plain_is_the_papers_step() -> None:
    # θ_0 + α_2 · sum / M, by hand: [1, -2] + 0.5 · [8, 4] / 4
    (after,) = play(algorithm("plain", 0.5), [[8.0, 4.0]])
    np.testing.assert_allclose(after, [2.0, -1.5])


def test_the_mean_divides_by_the_expected_cohort_not_by_replies() -> None:
    # One reply of 4 instead of four: the sum of one update, divided by 4 all the same.
    (after,) = play(algorithm("plain", 1.0), [[4.0, 0.0]])
    np.testing.assert_allclose(after, [2.0, -2.0])


def test_momentum_adds_nine_tenths_of_the_last_step() -> None:
    first, second = play(algorithm("momentum", 1.0), [[4.0, 0.0], [4.0, 0.0]])
    np.testing.assert_allclose(first, [2.0, -2.0])
    np.testing.assert_allclose(second, [2.0 + 1.0 + 0.9, -2.0], rtol=1e-6)


def test_adam_moves_by_the_rate_whatever_the_size_at_first() -> None:
    (after,) = play(algorithm("adam", 0.01), [[400.0, -0.4]])
    np.testing.assert_allclose(after, [1.01, -2.01], rtol=1e-5)


def test_absorb_leaves_the_state_before_as_it_was() -> None:
    made = algorithm("adam", 0.1)
    state = made.init(key(0, 0, "init"))
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    after = made.absorb(state, CohortSum({"w": jnp.ones(2)}, jnp.zeros(())))
    assert after.round_index == state.round_index + 1
    same = jax.tree.map(np.array_equal, before, (state.params, state.opt_state))
    assert all(jax.tree.leaves(same))


def test_cohorts_are_uniform_without_replacement() -> None:
    made = algorithm("plain", 1.0)
    state = made.init(key(0, 0, "init"))
    population = np.arange(10, 30)
    counts = np.zeros(30)
    for round_index in range(5000):
        cohort = made.select(state, population, rng(0, round_index, "cohort"))
        assert len(set(cohort.tolist())) == COHORT
        counts[cohort] += 1
    assert counts[:10].sum() == 0
    # Each count is binomial(5000, 0.2): within five standard deviations of 1000.
    assert np.abs(counts[10:] - 1000).max() < 5 * np.sqrt(5000 * 0.2 * 0.8)


def test_the_whole_population_can_be_a_cohort_but_no_more() -> None:
    draw = rng(0, 0, "cohort")
    assert sorted(fixed_size(3).sample(np.arange(3), draw).tolist()) == [0, 1, 2]
    with pytest.raises(SettingsError, match="at most the 2 people who train; got 3"):
        fixed_size(3).sample(np.arange(2), draw)


def test_server_state_of_plain_sgd_holds_nothing() -> None:
    state = algorithm("plain", 1.0).init(key(0, 0, "init"))
    assert isinstance(state, ServerState)
    assert jax.tree.leaves(state.opt_state) == jax.tree.leaves(optax.sgd(1.0).init(state.params))
