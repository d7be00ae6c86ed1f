"""select and absorb: the server's side of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.federated.lanes import CohortSum
from privrec.federated.local import LocalResult
from privrec.federated.round import (
    FederatedAlgorithm,
    ServerOptimizer,
    ServerState,
    federated,
    server_optimizer,
)
from privrec.privacy.aggregate import plain
from privrec.privacy.noise import seeded
from privrec.privacy.sampling import Sampling
from privrec.seeds import rng

COHORT = 4
USERS = 20
START = {"w": jnp.array([1.0, -2.0])}


def algorithm(name: ServerOptimizer, rate: float) -> FederatedAlgorithm:
    return federated(
        local=lambda params, catalogue, client: LocalResult({}, jnp.zeros(())),
        aggregator=plain(Sampling(law="fixed", users=USERS, cohort=COHORT)),
        server_optimizer=server_optimizer(name, rate),
    )


def absorb(made: FederatedAlgorithm, state: ServerState, total: list[float]) -> ServerState:
    none = jnp.zeros((), jnp.int32)
    whole = CohortSum({"w": jnp.array(total)}, jnp.zeros(()), none, none)
    return made.absorb(state, whole, COHORT, seeded(rng(0, state.round_index, "noise")))


def play(made: FederatedAlgorithm, sums: list[list[float]]) -> list[np.ndarray]:
    state = made.init(START)
    seen = []
    for total in sums:
        state = absorb(made, state, total)
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
    state = made.init(START)
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    after = absorb(made, state, [1.0, 1.0])
    assert after.round_index == state.round_index + 1
    same = jax.tree.map(np.array_equal, before, (state.params, state.opt_state))
    assert all(jax.tree.leaves(same))


def test_server_state_of_plain_sgd_holds_nothing() -> None:
    state = algorithm("plain", 1.0).init(START)
    assert isinstance(state, ServerState)
    assert jax.tree.leaves(state.opt_state) == jax.tree.leaves(optax.sgd(1.0).init(state.params))
