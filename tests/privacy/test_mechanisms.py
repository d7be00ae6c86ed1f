"""Clipping and noise: bounds for any input, and noise of the scale and shape that is counted."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from privrec.core.bound import clip
from privrec.errors import DataError, SettingsError
from privrec.privacy.aggregate import Aggregator, CohortTotal, gaussian, laplace, plain
from privrec.privacy.release import NoiseSource, Sampling, secure, seeded
from privrec.seeds import rng
from privrec.types import Law, Norm

DRAWS = 1_000_000
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = hnp.arrays(np.float32, st.sampled_from([1, 2, 40]), elements=finite)  # few: each compiles
bounds = st.floats(2.0**-10, 1024, width=32)
compiled = jax.jit(clip, static_argnames="norm")


def length(leaves: dict[str, jax.Array], norm: Norm) -> float:
    """Return the norm over all parameters, in float64."""
    whole = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves.values()])
    return float(np.abs(whole).sum() if norm == "l1" else math.sqrt((whole**2).sum()))


@pytest.mark.parametrize("norm", ["l1", "l2"])
@settings(deadline=None, max_examples=150)
@given(first=vectors, second=vectors, bound=bounds)
def test_no_finite_update_is_longer_than_the_bound(
    norm: Norm, first: np.ndarray, second: np.ndarray, bound: float
) -> None:
    """Up to the largest floats; the direction is kept, and short updates are not changed."""
    update = {"a": jnp.asarray(first), "b": jnp.asarray(second).reshape(-1, 1)}
    before = length(update, norm)
    found = compiled(update, np.float32(bound), norm=norm)
    assert bool(found.is_finite)
    assert length(found.contribution, norm) <= bound
    if before <= 0.99 * bound:
        assert not bool(found.was_long)
        for name, leaf in update.items():
            np.testing.assert_array_equal(found.contribution[name], leaf)
    elif before >= bound:
        assert bool(found.was_long)
        assert length(found.contribution, norm) >= 0.99 * bound
        for name, leaf in update.items():
            wanted = np.asarray(leaf, np.float64) / before * bound
            np.testing.assert_allclose(
                found.contribution[name], wanted, rtol=3e-3, atol=1e-6 * bound
            )


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_bound_holds_for_many_entries_that_round_the_same_way(norm: Norm) -> None:
    """A float32 sum of half a million equal terms has an error far above one rounding."""
    for value in (1.0, 0.1, 1 / 3, 1.0000001):
        update = {"a": jnp.full((500_000,), value, jnp.float32)}
        assert (
            0.995 < length(compiled(update, np.float32(1.0), norm=norm).contribution, norm) <= 1.0
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_what_is_not_finite_is_dropped_and_counted(bad: float, bound: float) -> None:
    found = compiled({"a": jnp.array([1.0, bad]), "b": jnp.ones((2, 2))}, np.float32(bound))
    assert not bool(found.is_finite)
    assert not bool(found.was_long)
    assert length(found.contribution, "l2") == 0.0


def test_a_zero_update_and_an_infinite_bound_change_nothing() -> None:
    zero = {"a": jnp.zeros(3)}
    assert np.array_equal(compiled(zero, np.float32(1e-6)).contribution["a"], np.zeros(3))
    large = {"a": jnp.array([1e30, -1e-30])}
    found = compiled(large, np.float32(math.inf))
    np.testing.assert_array_equal(found.contribution["a"], large["a"])
    assert bool(found.is_finite)
    assert not bool(found.was_long)


@settings(deadline=None, max_examples=50)
@given(
    people=hnp.arrays(np.float32, (5, 6), elements=st.floats(-1e6, 1e6, width=32)),
    other=hnp.arrays(np.float32, 6, elements=st.floats(-1e6, 1e6, width=32)),
)
def test_one_person_moves_the_sum_by_at_most_the_reach(
    people: np.ndarray, other: np.ndarray
) -> None:
    """The sensitivity is S for adding and 2S for replacing; the worst pair attains it."""
    bound = 0.5

    def total(rows: np.ndarray) -> np.ndarray:
        clipped = [
            compiled({"a": jnp.asarray(row)}, np.float32(bound)).contribution["a"] for row in rows
        ]
        whole: np.ndarray = np.sum([np.asarray(row, np.float64) for row in clipped], axis=0)
        return whole

    whole = total(people)
    replaced = np.concatenate([people[:-1], other[None]])
    assert np.linalg.norm(whole - total(people[:-1])) <= bound
    assert np.linalg.norm(whole - total(replaced)) <= 2 * bound
    far = np.full((1, 6), 9.0, np.float32)
    assert np.linalg.norm(total(far) - total(-far)) > 1.99 * bound


def sources() -> list[tuple[str, Callable[[], NoiseSource]]]:
    return [("seeded", lambda: seeded(rng(0, 0, "noise"))), ("secure", secure)]


@pytest.mark.parametrize(("name", "source"), sources())
def test_standard_noise_has_its_law(name: str, source: Callable[[], NoiseSource]) -> None:
    noise = source()
    normal, laplacian = noise.normal(DRAWS), noise.laplace(DRAWS)
    assert abs(normal.std() - 1) < 0.005
    assert stats.kstest(normal, "norm").pvalue > 1e-9
    assert stats.kstest(laplacian, "laplace").pvalue > 1e-9
    # Neighbours are independent, the halves of a Box-Muller pair included.
    for draws in (normal, laplacian):
        for lag in (1, DRAWS // 2):
            assert abs(np.corrcoef(draws[:-lag], draws[lag:])[0, 1]) < 5 / math.sqrt(DRAWS / 2)
    assert len(noise.normal(7)) == len(noise.laplace(7)) == 7
    assert name in {"seeded", "secure"}


def test_secure_noise_never_repeats_and_seeded_noise_always_does() -> None:
    assert not np.array_equal(secure().normal(8), secure().normal(8))
    first, again = (seeded(rng(3, 1, "noise")).normal(8) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, seeded(rng(3, 2, "noise")).normal(8))


@pytest.mark.parametrize("law", ["poisson", "fixed"])
@pytest.mark.parametrize("source", [pair[1] for pair in sources()])
def test_the_sum_gets_noise_of_the_scale_that_is_counted(
    law: Law, source: Callable[[], NoiseSource]
) -> None:
    """s = z · S with Poisson and z · 2S with fixed cohorts, on all entries, also unchanged."""
    sampling = Sampling(law=law, users=100, cohort=10)
    total = {"a": jnp.full((1000, 900), 7.0), "b": jnp.zeros((100_000,))}
    s = 1.5 * 0.4 * (1 if law == "poisson" else 2)
    made = gaussian(sampling, clip_norm=0.4, noise_multiplier=1.5)
    published = made.publish(total, 0.4, source())
    noise = np.concatenate([np.ravel(published[k] - np.asarray(total[k])) for k in total])
    assert len(noise) == DRAWS
    assert abs(noise.std() / s - 1) < 0.02
    assert stats.kstest(noise / s, "norm").pvalue > 1e-9
    assert np.count_nonzero(published["b"]) > 99_000
    heavy = laplace(sampling, clip_norm=0.4, noise_multiplier=1.5).publish(total, 0.4, source())
    assert stats.kstest(np.ravel(heavy["b"]) / s, "laplace").pvalue > 1e-9


def test_published_values_lie_on_a_grid() -> None:
    made = gaussian(SAMPLING, clip_norm=1.0, noise_multiplier=1.0)
    values = made.publish({"a": jnp.full(1000, 0.1)}, 1.0, secure())["a"].astype(np.float64)
    assert np.array_equal(values * 4096, np.round(values * 4096))


def test_without_noise_the_sum_is_published_as_it_is() -> None:
    total = {"a": jnp.array([1.25, 1e-20])}
    for made in (plain(SAMPLING), gaussian(SAMPLING, clip_norm=1.0, noise_multiplier=0.0)):
        np.testing.assert_array_equal(made.publish(total, 1.0, secure())["a"], total["a"])
        assert not made.release.is_private


SAMPLING = Sampling(law="poisson", users=1000, cohort=100)


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_adaptive_clipping_pays_for_its_count_out_of_the_same_release(law: Law) -> None:
    sampling = Sampling(law=law, users=1000, cohort=100)
    made = gaussian(sampling, clip_norm=1.0, noise_multiplier=2.0, clip_quantile=0.5)
    assert made.release.joint_multiplier == pytest.approx(2.0)
    assert made.release.quantile_multiplier is not None
    assert made.release.noise_multiplier > 2.0
    # In units of the noise, update and count have sensitivities 1/z_u and 1/z_q: together 1/2.
    joint = made.release.noise_multiplier**-2 + made.release.quantile_multiplier**-2
    assert joint == pytest.approx(1 / 4)
    fixed = gaussian(sampling, clip_norm=1.0, noise_multiplier=2.0)
    assert fixed.release.joint_multiplier == fixed.release.noise_multiplier == 2.0


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_the_count_of_clipped_updates_is_noised_as_it_is_counted(law: Law) -> None:
    """The bound moves by -0.2 · (share within - quantile): its log shows the count's noise."""
    sampling = Sampling(law=law, users=1000, cohort=100)
    made = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0, clip_quantile=0.5)
    source = seeded(rng(0, 0, "noise"))
    moved = [
        math.log(made.next_clip_norm(1.0, count=100 / 2 - 20, noise=source)) for _ in range(20_000)
    ]
    within = 0.5 - np.array(moved) / 0.2
    assert within.mean() == pytest.approx(0.8, abs=0.002)
    assert made.release.quantile_multiplier is not None
    reach = 0.5 * sampling.reach  # 1/2 for one more client, 1 for a client replaced
    assert within.std() * 100 == pytest.approx(made.release.quantile_multiplier * reach, rel=0.03)


def test_the_bound_finds_the_quantile() -> None:
    norms = np.exp(np.random.default_rng(0).normal(size=4000))
    made = gaussian(SAMPLING, clip_norm=50.0, noise_multiplier=1.0, clip_quantile=0.7)
    source, bound = seeded(rng(0, 0, "noise")), 50.0
    draw = rng(0, 0, "cohort")
    for _ in range(400):
        cohort = draw.choice(norms, 100)
        clipped = int((cohort > bound).sum())
        bound = made.next_clip_norm(bound, count=100 / 2 - clipped, noise=source)
    assert (norms <= bound).mean() == pytest.approx(0.7, abs=0.06)


def test_a_bound_that_stays_needs_no_noise() -> None:
    made = gaussian(SAMPLING, clip_norm=3.0, noise_multiplier=1.0)
    same = made.next_clip_norm(3.0, count=9 / 2 - 9, noise=secure())
    assert same == 3.0


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_bounds_nothing_is_refused(bound: float) -> None:
    with pytest.raises(SettingsError, match="`clip_norm` must be"):
        gaussian(SAMPLING, clip_norm=bound, noise_multiplier=1.0)


@pytest.mark.parametrize("noise", [-1.0, math.nan, math.inf])
def test_noise_that_is_no_number_is_refused(noise: float) -> None:
    with pytest.raises(SettingsError, match="`noise_multiplier` must be 0, or >= 1e-06 and"):
        gaussian(SAMPLING, clip_norm=1.0, noise_multiplier=noise)


def test_laplace_bounds_the_sum_of_absolute_values() -> None:
    made = laplace(SAMPLING, clip_norm=1.0, noise_multiplier=1.0)
    found = clip({"a": jnp.array([3.0, -3.0])}, np.float32(1.0), made.norm).contribution["a"]
    np.testing.assert_allclose(found, [0.5, -0.5], rtol=2e-3)
    with pytest.raises(SettingsError, match="needs the Gaussian mechanism"):
        Aggregator(
            release=type(made.release)(
                mechanism="laplace", sampling=SAMPLING, quantile_multiplier=1.0
            ),
            clip_norm=1.0,
            clip_quantile=0.5,
        )


def test_a_sum_that_is_not_finite_is_never_published() -> None:
    """Noise would not hide which entries are no numbers."""
    sampling = Sampling(law="poisson", users=10, cohort=10)
    mechanism = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0)
    noise = seeded(rng(0, 0, "noise"))
    with pytest.raises(DataError, match="not finite"):
        mechanism.publish({"a": np.array([1.0, np.nan])}, 1.0, noise)


@pytest.mark.parametrize("count", [-1e300, -1e5, 1e5, 1e300])
def test_no_count_moves_an_adaptive_bound_out_of_range(count: float) -> None:
    """A hostile node can add any number to the count of a secure sum."""
    sampling = Sampling(law="poisson", users=100, cohort=10)
    made = gaussian(sampling, clip_norm=1.0, noise_multiplier=1.0, clip_quantile=0.5)
    bound = 1.0
    for _ in range(60):
        bound = made.publish_round(
            CohortTotal({}, within=count, noised=True), bound, secure()
        ).clip_norm
        assert 2.0**-40 <= bound <= 2.0**40
