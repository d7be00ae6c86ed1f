"""ε against published constants, closed forms, other code, and attacks that count outcomes."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privrec.errors import SettingsError
from privrec.privacy.aggregate import gaussian, laplace
from privrec.privacy.calibrate import calibrate
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release, Sampling, seeded
from privrec.runs.ledger import LedgerLine
from privrec.seeds import rng
from privrec.types import Law, MechanismName

LAWS: tuple[Law, ...] = ("poisson", "fixed")
MECHANISMS: tuple[MechanismName, ...] = ("gaussian", "laplace")


def release(
    law: Law, users: int, cohort: int, z: float, mechanism: MechanismName = "gaussian"
) -> Release:
    sampling = Sampling(law=law, users=users, cohort=cohort)
    return Release(mechanism=mechanism, sampling=sampling, noise_multiplier=z)


def spent(law: Law, users: int, cohort: int, z: float, rounds: int) -> PrivacyLedger:
    return PrivacyLedger().record(release(law, users, cohort, z), rounds)


# --- published values and closed forms -------------------------------------------------------


def test_the_constants_that_others_publish() -> None:
    """σ/C = 1.5, q = 0.04, 2250 rounds, δ = 1e-5: Opacus pins 7.3291 (RDP) and 6.7774 (PRV)."""
    ledger = spent("poisson", 1000, 40, 1.5, 2250)
    assert ledger.epsilon_rdp(1e-5) == pytest.approx(7.3291, abs=0.002)
    assert ledger.epsilon(1e-5) == pytest.approx(6.7774, rel=0.003)


@pytest.mark.parametrize(
    ("cohort", "rdp", "fixed", "double", "single"),
    [
        (5, 0.899, 0.283, 0.064, 0.194),
        (10, 1.155, 0.594, 0.135, 0.408),
        (20, 1.709, 1.247, 0.282, 0.849),
        (30, 2.446, 1.929, 0.436, 1.298),
    ],
)
def test_the_table_of_the_specification(
    cohort: int, rdp: float, fixed: float, double: float, single: float
) -> None:
    """4800 people, 1000 rounds, δ = 1e-6; the noise on the sum is 2S, 2S, 2S and S."""
    papers = spent("fixed", 4800, cohort, 1.0, 1000)
    assert papers.epsilon_rdp(1e-6) == pytest.approx(rdp, abs=6e-4)
    assert papers.epsilon(1e-6) == pytest.approx(fixed, abs=6e-4)
    assert spent("poisson", 4800, cohort, 2.0, 1000).epsilon(1e-6) == pytest.approx(
        double, abs=6e-4
    )
    assert spent("poisson", 4800, cohort, 1.0, 1000).epsilon(1e-6) == pytest.approx(
        single, abs=6e-4
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("z", [0.3, 1.0, 5.0])
def test_everybody_in_one_round_is_the_gaussian_mechanism(law: Law, z: float) -> None:
    """δ(ε) = Φ(1/2z - εz) - e^ε Φ(-1/2z - εz) (Balle and Wang 2018); z has the sensitivity."""
    epsilon = spent(law, 50, 50, z, 1).epsilon(1e-5)
    delta = norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    assert delta <= 1e-5 * 1.0001
    assert delta == pytest.approx(1e-5, rel=0.02)


@pytest.mark.parametrize("law", LAWS)
def test_one_laplace_release_from_everybody_is_pure(law: Law) -> None:
    ledger = PrivacyLedger().record(release(law, 50, 50, 2.0, "laplace"))
    # δ(ε) = 1 - e^((ε - 1/b)/2) for one Laplace of scale b; nothing exceeds 1/b.
    assert ledger.epsilon(1e-12) == pytest.approx(0.5, rel=1e-3)
    if law == "poisson":
        assert ledger.epsilon(0.1) == pytest.approx(0.5 + 2 * math.log(0.9), rel=1e-2)


@pytest.mark.parametrize("parts", [2, 5, 20])
def test_laplace_noise_on_many_entries_is_no_worse_than_on_one(parts: int) -> None:
    """The accountant assumes an update with one nonzero entry: an even spread costs less."""
    one = pld.from_laplace_mechanism(1.0, value_discretization_interval=1e-3)
    part = pld.from_laplace_mechanism(float(parts), value_discretization_interval=1e-3)
    spread = part.self_compose(parts)
    for epsilon in np.linspace(0, 1, 21):
        assert spread.get_delta_for_epsilon(epsilon) <= one.get_delta_for_epsilon(epsilon) + 2e-3


# --- worst-case pairs, simulated with privrec's draws and noise --------------------------------


USERS, COHORT, ROUNDS, DELTA, TRIALS = 20, 4, 12, 0.01, 20_000


@cache
def trials(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Return in which rounds of many runs one person was drawn, and standard noise for them."""
    sampling = Sampling(law=law, users=USERS, cohort=COHORT)
    people, draw = np.arange(USERS), rng(0, 0, f"cohort of {law}")
    taken = np.array([0 in sampling.draw(people, draw) for _ in range(TRIALS * ROUNDS)])
    noise = seeded(rng(0, 0, "noise")).normal(taken.size)
    return taken.reshape(TRIALS, ROUNDS), noise.reshape(TRIALS, ROUNDS)


def violation(law: Law, s: float, epsilon: float) -> float:
    """Return δ(ε) as counted over many runs on the worst pair of data sets, with our own draws.

    All others send -S (S = 1). One person sends +S in one data set and, in the other, is not there
    (Poisson) or sends -S as well (fixed). What is seen is the noised sum of every round; the loss
    is the exact log-likelihood ratio. δ(ε) = E[(1 - e^(ε - loss))+] under either data set.
    """
    shift = 1.0 if law == "poisson" else 2.0
    taken, standard = trials(law)
    noise = s * standard

    def loss(seen: np.ndarray) -> np.ndarray:
        ratio = np.exp((2 * seen * shift - shift**2) / (2 * s**2))
        losses: np.ndarray = np.log1p(COHORT / USERS * (ratio - 1)).sum(axis=1)
        return losses

    def excess(losses: np.ndarray) -> float:
        return float(np.maximum(0, -np.expm1(epsilon - losses)).mean())

    return max(excess(loss(noise + shift * taken)), excess(-loss(noise)))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_worst_pair_stays_within_delta(law: Law) -> None:
    sampling = Sampling(law=law, users=USERS, cohort=COHORT)
    made = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0)
    epsilon = PrivacyLedger().record(made.release, ROUNDS).epsilon(DELTA)
    s = made.noise_scale(1.0)
    found = violation(law, s, epsilon)
    assert found <= DELTA * 1.1  # 20,000 trials: a tenth is more than three standard errors
    if law == "poisson":  # tight, so the test detects a little less noise
        assert found > DELTA / 2
        assert violation(law, 0.85 * s, epsilon) > 1.5 * DELTA


@pytest.mark.slow
def test_leaving_the_factor_two_out_is_caught() -> None:
    """Noise S on the sum of a fixed-size cohort, wrongly counted with a sensitivity of S."""
    ledger = spent("fixed", USERS, COHORT, 1.0, ROUNDS)
    for claimed in (ledger.epsilon(DELTA), ledger.epsilon_rdp(DELTA)):
        assert violation("fixed", 1.0, claimed) > 3 * DELTA


# --- the ledger ------------------------------------------------------------------------------

small = st.integers(1, 40)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)  # each takes a tenth of a second
@given(
    law=st.sampled_from(LAWS),
    mechanism=st.sampled_from(MECHANISMS),
    cohort=st.integers(1, 50),
    z=st.floats(0.4, 20),
    rounds=st.sampled_from([1, 3, 40, 400]),
)
def test_the_tight_figure_is_never_above_the_cross_check(
    law: Law, mechanism: MechanismName, cohort: int, z: float, rounds: int
) -> None:
    ledger = PrivacyLedger().record(release(law, 50, cohort, z, mechanism), rounds)
    assert 0 <= ledger.epsilon(1e-5) <= ledger.epsilon_rdp(1e-5) * 1.001


@given(times=st.lists(small, max_size=6))
def test_single_records_equal_one_record_of_many(times: list[int]) -> None:
    one, other = release("poisson", 100, 10, 1.0), release("poisson", 100, 10, 2.0)
    singles = many = PrivacyLedger()
    for k, count in enumerate(times):
        kind = (one, other)[k % 2]
        many = many.record(kind, count)
        for _ in range(count):
            singles = singles.record(kind)
    assert singles == many
    assert many.releases == sum(times)
    assert PrivacyLedger().compose(many) == many


@pytest.mark.slow
def test_stages_and_runs_add_up() -> None:
    """Two stages in one ledger equal one accountant that saw both; and cost more than either."""
    first = spent("poisson", 1000, 50, 1.0, 30)
    second = spent("poisson", 1000, 200, 3.0, 50)
    both = first.compose(second)
    assert max(first.epsilon(1e-6), second.epsilon(1e-6)) < both.epsilon(1e-6)
    assert both.epsilon(1e-6) < first.epsilon(1e-6) + second.epsilon(1e-6)
    step = 1e-4
    whole = (
        pld.from_gaussian_mechanism(1.0, sampling_prob=0.05, value_discretization_interval=step)
        .self_compose(30)
        .compose(
            pld.from_gaussian_mechanism(
                3.0, sampling_prob=0.2, value_discretization_interval=step
            ).self_compose(50)
        )
    )
    assert both.epsilon(1e-6) == pytest.approx(whole.get_epsilon_for_delta(1e-6), rel=0.005)


def test_recording_leaves_the_ledger_before_as_it_was() -> None:
    before = spent("poisson", 100, 10, 1.0, 3)
    after = before.record(release("poisson", 100, 10, 1.0))
    assert (before.releases, after.releases) == (3, 4)
    with pytest.raises(AttributeError):
        before.entries = ()  # type: ignore[misc]


def test_without_noise_there_is_no_guarantee_ever() -> None:
    bare = Release(mechanism="none", sampling=Sampling(law="poisson", users=100, cohort=1))
    silent = release("poisson", 100, 1, 0.0)
    noised = spent("poisson", 100, 10, 1.0, 3)
    for kind in (bare, silent):
        for ledger in (PrivacyLedger().record(kind), noised.record(kind), noised.record(kind, 5)):
            assert ledger.epsilon(1e-6) == ledger.epsilon_rdp(1e-6) == math.inf
            assert not ledger.is_private
    assert PrivacyLedger().epsilon(1e-6) == 0.0  # Nothing was released.


@pytest.mark.parametrize("cohort", [10, 5])  # From a tenth on, RDP is asked too.
def test_the_two_kinds_of_guarantee_do_not_mix(cohort: int) -> None:
    mixed = spent("poisson", 100, cohort, 1.0, 1).record(release("fixed", 100, cohort, 1.0))
    for ask in (mixed.epsilon, mixed.epsilon_rdp, lambda delta: mixed.deltas(np.array([delta]))):
        with pytest.raises(SettingsError, match="cannot be added up"):
            ask(1e-6)
    # But one release without noise makes the total infinite.
    bare = Release(mechanism="none", sampling=Sampling(law="fixed", users=100, cohort=1))
    for ledger in (spent("poisson", 100, 10, 1.0, 1).record(bare), mixed.record(bare)):
        assert ledger.epsilon(1e-6) == ledger.epsilon_rdp(1e-6) == math.inf


@pytest.mark.slow
def test_the_rounds_that_are_left() -> None:
    kind = release("poisson", 1000, 50, 1.0)
    ledger = PrivacyLedger().record(kind, 20)
    left = ledger.affordable(kind, epsilon=3.0, delta=1e-6, most=10_000)
    assert 0 < left < 10_000
    assert ledger.record(kind, left).epsilon(1e-6) <= 3.0
    assert ledger.record(kind, left + 1).epsilon(1e-6) > 3.0
    assert ledger.affordable(kind, epsilon=3.0, delta=1e-6, most=left - 1) == left - 1
    assert ledger.affordable(kind, epsilon=1e-3, delta=1e-6, most=50) == 0


@pytest.mark.parametrize("z", [1e-4, 0.01, 100.0, 1e4])
@pytest.mark.parametrize("law", LAWS)
def test_extreme_noise_is_counted_without_a_fuss(law: Law, z: float) -> None:
    """Very little noise gives a large or infinite ε without using gigabytes of memory."""
    found = spent(law, 1000, 10, z, 10).epsilon(1e-6)
    if z < 0.1:
        assert found > 1000
    else:
        assert 0 <= found < 0.01


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan, math.inf])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    ledger = spent("poisson", 100, 10, 1.0, 1)
    for figure in (ledger.epsilon, ledger.epsilon_rdp):
        with pytest.raises(SettingsError, match="`delta` must be > 0 and < 1; got"):
            figure(delta)


# --- calibration -----------------------------------------------------------------------------


@pytest.mark.slow
def test_calibration_stays_within_its_target() -> None:
    sampling = Sampling(law="poisson", users=1000, cohort=1000)
    for epsilon in np.linspace(0.5, 8, 16):
        z = calibrate(sampling, rounds=2, epsilon=float(epsilon), delta=1e-6)
        release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=z)
        assert PrivacyLedger().record(release, 2).epsilon(1e-6) <= epsilon


@pytest.mark.slow
@settings(deadline=None, max_examples=8)  # each takes up to a second
@given(
    law=st.sampled_from(LAWS),
    mechanism=st.sampled_from(MECHANISMS),
    users=st.sampled_from([60, 1000, 100_000]),
    share=st.floats(0.005, 1.0),
    rounds=st.sampled_from([1, 10, 300, 3000]),
    epsilon=st.floats(0.2, 50),
)
def test_calibration_never_exceeds_its_target_and_wastes_little(
    law: Law, mechanism: MechanismName, users: int, share: float, rounds: int, epsilon: float
) -> None:
    sampling = Sampling(law=law, users=users, cohort=max(1, round(share * users)))
    z = calibrate(sampling, rounds=rounds, epsilon=epsilon, delta=1e-6, mechanism=mechanism)
    kind = Release(mechanism=mechanism, sampling=sampling, noise_multiplier=z)
    found = PrivacyLedger().record(kind, rounds).epsilon(1e-6)
    assert 0.99 * epsilon <= found <= epsilon


@pytest.mark.slow
def test_calibration_counts_what_was_spent_before() -> None:
    before = spent("poisson", 1000, 100, 2.0, 10)
    sampling = Sampling(law="poisson", users=1000, cohort=50)
    z = calibrate(sampling, rounds=20, epsilon=4, delta=1e-6, spent=before)
    kind = release("poisson", 1000, 50, z)
    assert 3.96 <= before.record(kind, 20).epsilon(1e-6) <= 4
    assert z > calibrate(sampling, rounds=20, epsilon=4, delta=1e-6)
    with pytest.raises(SettingsError, match=r"nothing is left of epsilon 0\.5: "):
        calibrate(sampling, rounds=20, epsilon=0.5, delta=1e-6, spent=before)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan])
def test_a_budget_of_nothing_is_refused(epsilon: float) -> None:
    sampling = Sampling(law="poisson", users=1000, cohort=50)
    with pytest.raises(SettingsError, match="`epsilon` must be > 0; got"):
        calibrate(sampling, rounds=20, epsilon=epsilon, delta=1e-6)
    with pytest.raises(SettingsError, match="`rounds` must be >= 1; got 0"):
        calibrate(sampling, rounds=0, epsilon=1.0, delta=1e-6)


def test_a_ledger_line_says_all_that_counts() -> None:
    for kind in (
        release("fixed", 100, 10, 1.0),
        release("poisson", 100, 10, 0.3, "laplace"),
        gaussian(
            Sampling(law="poisson", users=100, cohort=10),
            clip_norm=1.0,
            noise_multiplier=1.0,
            clip_quantile=0.5,
        ).release,
    ):
        about = {
            **{"round": 0, "stage": "train", "people": "everybody", "population": ""},
            **{"noise": "secure", "clip_norm": 1.0, "noise_scale": 1.0},
        }
        assert LedgerLine.model_validate({**about, **kind.as_json()}).release == kind
    made = laplace(Sampling(law="fixed", users=9, cohort=3), clip_norm=2.0, noise_multiplier=1.5)
    assert made.noise_scale(2.0) == 1.5 * 2 * 2.0
    assert replace(made.release, noise_multiplier=0.0).is_private is False
