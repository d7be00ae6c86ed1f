"""select and absorb: the server's side of a round."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.federated.lanes import CohortSum
from privrec.federated.local import LocalResult
from privrec.federated.pack import Packed
from privrec.federated.round import (
    FederatedAlgorithm,
    RoundReport,
    ServerOptimizer,
    ServerState,
    federated,
    play_round,
    server_optimizer,
)
from privrec.privacy.aggregate import CohortTotal, Published, gaussian, plain
from privrec.privacy.noise import seeded
from privrec.privacy.sampling import Sampling
from privrec.seeds import rng
from privrec.types import IntArray, Leaf, Params

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
    whole = CohortTotal({"w": jnp.array(total)}, COHORT)
    noise = seeded(rng(0, state.round_index, "noise"))
    return made.absorb(state, made.aggregator.publish_round(whole, state.clip_norm, noise))


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


def test_the_bound_of_the_next_round_is_the_published_one() -> None:
    made = federated(
        local=lambda params, catalogue, client: LocalResult({}, jnp.zeros(())),
        aggregator=gaussian(
            Sampling(law="fixed", users=USERS, cohort=COHORT), clip_norm=2.0, noise_multiplier=1.0
        ),
        server_optimizer=server_optimizer("plain", 0.5),
    )
    state = made.init(START)
    assert state.clip_norm == 2.0
    after = made.absorb(state, Published({"w": np.array([8.0, 4.0])}, 1.25))
    assert after.clip_norm == 1.25
    # The published sum is used as it is: the noise is on it already.
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])


class Asked:
    """A cohort that counts how often it is drawn, packed and trained."""

    def __init__(self) -> None:
        self.people: list[int] = []
        self.trained = 0

    def pack(self, positions: IntArray, round_index: int) -> Sequence[Packed]:
        self.people += positions.tolist()
        return []

    def run(self, params: Params, clients: Sequence[Packed], clip_norm: Leaf) -> CohortSum:
        self.trained += 1
        return CohortSum({"w": jnp.array([8.0, 4.0])}, jnp.array(6.0), jnp.array(2), jnp.array(1))


def played(
    asked: Asked, publish: Callable[[ServerState, Callable[[], CohortTotal]], Published]
) -> tuple[ServerState, RoundReport]:
    made = algorithm("plain", 0.5)
    return play_round(
        made,
        made.init(START),
        population=np.arange(USERS),
        pack=asked.pack,
        run_cohort=asked.run,
        draw=rng(0, 0, "cohort"),
        publish=publish,
    )


def test_a_round_publishes_what_its_cohort_adds_up_to() -> None:
    asked = Asked()
    seen: list[CohortTotal] = []

    def publish(state: ServerState, add_up: Callable[[], CohortTotal]) -> Published:
        assert asked.trained == 0  # Nobody is asked before the release is allowed.
        seen.append(add_up())
        return Published(dict(seen[0].update), state.clip_norm)

    after, report = played(asked, publish)
    [total] = seen
    assert (total.clients, total.clipped, total.dropped) == (COHORT, 2, 1)
    assert (len(set(asked.people)), asked.trained) == (COHORT, 1)
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])
    # The loss is a mean over the three who answered.
    assert (report.clients, report.loss, report.clipped, report.dropped) == (COHORT, 2.0, 2, 1)


def test_a_round_that_was_published_before_asks_nobody_again() -> None:
    asked = Asked()
    after, report = played(asked, lambda state, add_up: Published({"w": np.array([8.0, 4.0])}, 3.0))
    assert (asked.people, asked.trained) == ([], 0)
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])
    assert (after.round_index, after.clip_norm) == (1, 3.0)
    assert (report.round_index, report.clients, report.loss) == (0, None, None)
