"""Computes the noise of each round from the privacy budget of a run."""

import math
from functools import partial
from typing import NamedTuple

from privrec.algorithms.settings import FederatedSettings, NoiseSettings
from privrec.data.clients import Split
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, gaussian, laplace, plain
from privrec.privacy.calibrate import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Sampling
from privrec.types import Law

BOUND = 1.0
"""The L2 length of contributions that devices scale themselves."""
_PEOPLE_PER_NOISE = 12.0


def sampling_of(law: Law, cohort: int, split: Split) -> Sampling:
    """Return how cohorts (the people of one round) are sampled from the training people.

    Poisson sampling computes its probability from the public number of people. Fixed-size sampling
    uses the true number. Its guarantee compares data sets of the same size, so it does not protect
    this number.
    """
    users = len(split.train) if law == "fixed" else split.public_train
    return Sampling(law=law, users=users, cohort=cohort)


def aggregator_of(
    settings: FederatedSettings, split: Split, spent: PrivacyLedger | None = None
) -> Aggregator:
    """Return the aggregator of the training; `spent` has the earlier releases of the run."""
    return noised(
        settings,
        sampling_of(settings.sampling, settings.cohort, split),
        rounds=settings.rounds,
        clip_norm=settings.clip_norm,
        epsilon=settings.epsilon,
        spent=spent or PrivacyLedger(),
    )


def noised(
    settings: NoiseSettings,
    sampling: Sampling,
    *,
    rounds: int,
    clip_norm: float,
    epsilon: float | None,
    spent: PrivacyLedger,
) -> Aggregator:
    """Return the aggregator of `rounds` releases, which cost `epsilon` together with `spent`."""
    if settings.mechanism == "none":
        return plain(sampling)
    multiplier = settings.noise_multiplier
    if multiplier is None:
        multiplier = find_noise(
            sampling,
            rounds=rounds,
            epsilon=epsilon,
            delta=settings.delta,
            mechanism=settings.mechanism,
            spent=spent,
        )
    if settings.mechanism == "laplace":
        made = laplace(sampling, clip_norm=clip_norm, noise_multiplier=multiplier)
    else:
        made = gaussian(
            sampling,
            clip_norm=clip_norm,
            noise_multiplier=multiplier,
            clip_quantile=settings.clip_quantile or None,
        )
    check_budget(made.release, rounds=rounds, epsilon=epsilon, delta=settings.delta, spent=spent)
    return made


class PopularityAndSums(NamedTuple):
    """The aggregators of the popularity of items (the first sum) and of several later sums.

    `spent` has the releases of all sums. One release with `noise_multiplier` has the same cost.
    """

    popularity: Aggregator
    sums: Aggregator
    spent: PrivacyLedger
    noise_multiplier: float


def popularity_and_sums(
    settings: NoiseSettings, sampling: Sampling, n_items: int, *, sums: int, share: float = 1.0
) -> PopularityAndSums:
    """Return the aggregators of popularity and of `sums` later sums.

    Together, they cost the fraction `share` of ε.
    """
    check_gaussian(settings)
    given, epsilon, delta = settings.noise_multiplier, settings.epsilon, settings.delta
    find = partial(
        find_noise,
        sampling,
        epsilon=epsilon and share * epsilon,
        delta=delta,
        mechanism="gaussian",
    )
    whole = find(rounds=1, spent=PrivacyLedger()) if given is None else given
    popular = popularity_share(sampling.cohort, n_items, whole)
    first = gaussian(sampling, clip_norm=BOUND, noise_multiplier=whole / math.sqrt(popular))
    check_budget(first.release, rounds=1, epsilon=epsilon, delta=delta)
    spent = PrivacyLedger().record(first.release)
    left = math.sqrt(sums / (1 - popular))
    each = find(rounds=sums, spent=spent) if given is None else whole * left
    second = gaussian(sampling, clip_norm=BOUND, noise_multiplier=each)
    check_budget(second.release, rounds=sums, epsilon=epsilon, delta=delta, spent=spent)
    return PopularityAndSums(first, second, spent.record(second.release, sums), whole)


def check_gaussian(settings: NoiseSettings) -> None:
    """Raise unless the noise is Gaussian."""
    if settings.mechanism != "gaussian":
        raise SettingsError(
            f"{settings.recipe} takes Gaussian noise only; got {settings.mechanism}"
        )


def popularity_share(people: int, n_items: int, noise_multiplier: float) -> float:
    """Return the share of the precision 1/z² that goes to popularity: 5 to 50 %.

    z is the noise multiplier. The largest of n noise values is about z√(2 ln n). With fewer people
    per unit of noise, popularity needs a larger share to separate popular items from unpopular
    ones. The formula and its limits were chosen by hand and not tuned.
    """
    wanted = _PEOPLE_PER_NOISE * math.log(max(n_items, 2)) * noise_multiplier / people
    return min(max(wanted, 0.05), 0.5)
