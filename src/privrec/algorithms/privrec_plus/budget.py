"""How the budget of PrivRec+ is split between its two sums and the rounds on top."""

import math

from privrec.algorithms.budgets import BOUND, popularity_share, sampling_of
from privrec.algorithms.privrec_plus.settings import PlusSettings
from privrec.data.splits import Split
from privrec.errors import SettingsError
from privrec.privacy.aggregate import Aggregator, gaussian, plain
from privrec.privacy.calibrate import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Sampling


def split_budget(
    settings: PlusSettings, split: Split, n_items: int, *, sums: int = 1
) -> tuple[Aggregator, Aggregator, Aggregator]:
    """Return the aggregators of popularity, of what follows and of the rounds on top.

    Together they cost `epsilon`. After popularity there are as many equal releases as `sums` says.
    With rounds on top, all these get the share `stage1_share` of ε. Without, they get all of it.
    """
    users = len(split.train) if settings.sampling == "fixed" else split.public_train
    everybody, some = (
        sampling_of(settings.sampling, min(cohort, users), split)
        for cohort in (settings.stage1_cohort, settings.cohort)
    )
    if settings.mechanism == "none":
        return plain(everybody), plain(everybody), plain(some)
    if settings.mechanism != "gaussian":
        raise SettingsError(
            f"{settings.recipe} takes Gaussian noise only; got {settings.mechanism}"
        )
    if settings.clip_quantile and not settings.rounds:
        raise SettingsError(
            "`clip_quantile` is for rounds of training; `rounds` is 0, and the two sums have a"
            " fixed bound"
        )
    given, epsilon = settings.noise_multiplier, settings.epsilon

    def found(sampling: Sampling, rounds: int, share: float, spent: PrivacyLedger) -> float:
        return find_noise(
            sampling,
            rounds=rounds,
            epsilon=epsilon and share * epsilon,
            delta=settings.delta,
            mechanism="gaussian",
            spent=spent,
        )

    part = settings.stage1_share if settings.rounds else 1.0
    whole = found(everybody, 1, part, PrivacyLedger()) if given is None else given
    popular = popularity_share(everybody.cohort, n_items, whole)
    first = gaussian(everybody, clip_norm=BOUND, noise_multiplier=whole / math.sqrt(popular))
    check_budget(first.release, rounds=1, epsilon=epsilon, delta=settings.delta)
    spent = PrivacyLedger().record(first.release)
    left = math.sqrt(sums / (1 - popular))
    rest = found(everybody, sums, part, spent) if given is None else whole * left
    second = gaussian(everybody, clip_norm=BOUND, noise_multiplier=rest)
    check_budget(second.release, rounds=sums, epsilon=epsilon, delta=settings.delta, spent=spent)
    if not settings.rounds:
        return first, second, plain(some)
    spent = spent.record(second.release, sums)
    third = gaussian(
        some,
        clip_norm=settings.clip_norm,
        noise_multiplier=found(some, settings.rounds, 1.0, spent) if given is None else given,
        clip_quantile=settings.clip_quantile or None,
    )
    rounds = settings.rounds
    check_budget(third.release, rounds=rounds, epsilon=epsilon, delta=settings.delta, spent=spent)
    return first, second, third
