"""The server's step, and the one round that every recipe plays."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.core.contribution import Contribution
from privrec.core.phase import (
    Cohort,
    DeviceHalf,
    Journal,
    Phase,
    RoundReport,
    ServerState,
    Told,
    Unwritten,
)
from privrec.core.round import Draw, Surroundings, cohort_draw, play_round
from privrec.core.training import mean_step, server_optimizer
from privrec.data.clients import Clients
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published, gaussian, plain
from privrec.privacy.release import NoiseSource, Sampling, seeded
from privrec.types import IntArray, Law, Params, ServerOptimizer
from tiny import FixedNoise

COHORT = 4
USERS = 20
START = {"w": jnp.array([1.0, -2.0])}
SILENT = NoiseSource(normal=np.zeros, laplace=np.zeros)
SAMPLING = Sampling(law="fixed", users=USERS, cohort=COHORT)


class Asked:
    """Devices that record which people were asked, what they received, and the bound."""

    def __init__(self, total: list[float], dropped: int = 1) -> None:
        self.total, self.dropped = total, dropped
        self.people: list[int] = []
        self.told: list[Told] = []
        self.bounds: list[float] = []

    def run(
        self, phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
    ) -> CohortTotal:
        self.people += cohort.people.tolist()
        self.told.append(told)
        self.bounds.append(clip_norm)
        update = {"w": jnp.array(self.total)}
        return CohortTotal(update, clipped=2, dropped=self.dropped, skipped=1, loss=6.0)


class Notes(FixedNoise):
    """A journal that records its calls, and may have kept a release of before."""

    def __init__(self, asked: Asked, before: Published | None = None) -> None:
        super().__init__(SILENT)
        self.asked, self.before = asked, before
        self.calls: list[str] = []

    def kept(self, state: ServerState) -> Published | None:
        assert not self.asked.people  # Nobody is asked before the disk was looked at.
        self.calls.append("kept")
        return self.before

    def noise(self, state: ServerState) -> NoiseSource:
        self.calls.append("noise")
        return super().noise(state)

    def write(self, state: ServerState, published: Published) -> None:
        self.calls.append("write")


def nobody_is_asked(told: Told, person: Clients, round_index: int) -> Contribution:
    raise AssertionError


def nobody(positions: IntArray) -> Clients:
    raise AssertionError


def around(asked: Asked, journal: Journal) -> Surroundings:
    draw = cohort_draw(0, secret=False)
    return Surroundings(take=nobody, run=asked.run, draw=draw, journal=journal)


def phase(name: ServerOptimizer, rate: float, aggregator: Aggregator | None = None) -> Phase:
    optimizer = server_optimizer(name, rate)
    step = mean_step(optimizer, COHORT)
    maker = aggregator or plain(SAMPLING)

    def start(before: Params | None) -> ServerState:
        return ServerState(
            round_index=0, params=START, opt_state=optimizer.init(START), clip_norm=maker.clip_norm
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = step(state.params, state.opt_state, published.update)
        return replace(state, params=params, opt_state=opt_state)

    return Phase(
        name="train",
        rounds=9,
        first=0,
        population=np.arange(USERS),
        aggregator=maker,
        start=start,
        tell=lambda state: state.params,
        device=DeviceHalf(contribute=nobody_is_asked),
        absorb=absorb,
    )


def absorbed(made: Phase, state: ServerState, total: list[float]) -> ServerState:
    return play_round(made, state, around(Asked(total), Unwritten()))[0]


def play(made: Phase, sums: list[list[float]]) -> list[np.ndarray]:
    state = made.start(None)
    seen = []
    for total in sums:
        state = absorbed(made, state, total)
        seen.append(np.asarray(state.params["w"]))
    return seen


def test_plain_is_the_papers_step() -> None:
    # θ_0 + α_2 · sum / M, by hand: [1, -2] + 0.5 · [8, 4] / 4
    (after,) = play(phase("plain", 0.5), [[8.0, 4.0]])
    np.testing.assert_allclose(after, [2.0, -1.5])


def test_the_mean_divides_by_the_expected_cohort_not_by_replies() -> None:
    # Only one of four clients replies: the sum of one update is still divided by 4.
    (after,) = play(phase("plain", 1.0), [[4.0, 0.0]])
    np.testing.assert_allclose(after, [2.0, -2.0])


def test_momentum_adds_nine_tenths_of_the_last_step() -> None:
    first, second = play(phase("momentum", 1.0), [[4.0, 0.0], [4.0, 0.0]])
    np.testing.assert_allclose(first, [2.0, -2.0])
    np.testing.assert_allclose(second, [2.0 + 1.0 + 0.9, -2.0], rtol=1e-6)


def test_adam_moves_by_the_rate_whatever_the_size_at_first() -> None:
    (after,) = play(phase("adam", 0.01), [[400.0, -0.4]])
    np.testing.assert_allclose(after, [1.01, -2.01], rtol=1e-5)


def test_a_round_leaves_the_state_before_as_it_was() -> None:
    made = phase("adam", 0.1)
    state = made.start(None)
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    after = absorbed(made, state, [1.0, 1.0])
    assert after.round_index == state.round_index + 1
    same = jax.tree.map(np.array_equal, before, (state.params, state.opt_state))
    assert all(jax.tree.leaves(same))


def test_server_state_of_plain_sgd_holds_nothing() -> None:
    state = phase("plain", 1.0).start(None)
    assert jax.tree.leaves(state.opt_state) == jax.tree.leaves(optax.sgd(1.0).init(state.params))


def played(
    asked: Asked,
    journal: Journal,
    aggregator: Aggregator | None = None,
) -> tuple[ServerState, RoundReport]:
    made = phase("plain", 0.5, aggregator)
    return play_round(made, made.start(None), around(asked, journal))


def test_the_bound_of_the_next_round_is_the_published_one() -> None:
    asked = Asked([8.0, 4.0])
    bounded = gaussian(SAMPLING, clip_norm=2.0, noise_multiplier=1.0)

    after, _ = played(asked, Notes(asked, Published({"w": np.array([8.0, 4.0])}, 1.25)), bounded)
    assert after.clip_norm == 1.25
    # The published sum already has noise and is used unchanged.
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])


def test_a_round_publishes_what_its_cohort_adds_up_to() -> None:
    asked = Asked([8.0, 4.0])

    notes = Notes(asked)
    after, report = played(asked, notes)
    assert notes.calls == ["kept", "noise", "write"]
    assert len(set(asked.people)) == COHORT
    np.testing.assert_array_equal(asked.told[0]["w"], START["w"])
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])
    # The loss is a mean over the two clients that answered and had data to train on.
    assert (report.clients, report.loss, report.clipped, report.dropped) == (COHORT, 3.0, 2, 1)


def test_a_sum_is_written_before_it_is_used_and_only_with_its_noise() -> None:
    asked = Asked([8.0, 4.0])

    class Checked(Notes):
        def write(self, state: ServerState, published: Published) -> None:
            super().write(state, published)
            assert not np.array_equal(published.update["w"], asked.total)

    notes = Checked(asked)
    notes.source = seeded(np.random.default_rng(0))
    made = phase("plain", 0.5, gaussian(SAMPLING, clip_norm=2.0, noise_multiplier=1.0))

    def absorb(state: ServerState, published: Published) -> ServerState:
        assert notes.calls == ["kept", "noise", "write"]
        return made.absorb(state, published)

    play_round(replace(made, absorb=absorb), made.start(None), around(asked, notes))


def test_a_round_that_nobody_answered_has_no_loss() -> None:
    everybody_failed = Asked([0.0, 0.0], dropped=COHORT - 1)
    _, report = played(everybody_failed, FixedNoise(SILENT))
    assert (report.dropped, report.skipped, report.loss) == (COHORT - 1, 1, None)


def test_a_round_that_was_published_before_asks_nobody_again() -> None:
    asked = Asked([1.0, 1.0])
    notes = Notes(asked, Published({"w": np.array([8.0, 4.0])}, 3.0))
    after, report = played(asked, notes)
    assert notes.calls == ["kept"]
    assert (asked.people, asked.told) == ([], [])
    np.testing.assert_allclose(after.params["w"], [2.0, -1.5])
    assert (after.round_index, after.clip_norm) == (1, 3.0)
    assert (report.round_index, report.clients, report.loss) == (0, None, None)


def test_secret_cohorts_differ_and_seeded_ones_repeat() -> None:
    seeded, secret = cohort_draw(5, secret=False), cohort_draw(5, secret=True)
    everybody = np.arange(10_000)
    laws: tuple[Law, ...] = ("poisson", "fixed")
    for law in laws:
        sampling = Sampling(law=law, users=10_000, cohort=200)

        def drawn(draw: Draw, round_index: int, sampling: Sampling = sampling) -> set[int]:
            return set(sampling.draw(everybody, draw(round_index)).tolist())

        assert drawn(seeded, 3) == drawn(seeded, 3)
        assert drawn(seeded, 3) != drawn(seeded, 4)
        assert drawn(secret, 3) != drawn(secret, 3)
