"""How a run's budget becomes the bound and the noise of each of its stages."""

import numpy as np

from privrec.config import RunConfig
from privrec.data.splits import Split
from privrec.privacy.aggregate import Aggregator, gaussian, laplace, plain
from privrec.privacy.budget import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.sampling import Sampling
from privrec.seeds import rng
from privrec.types import IntArray


def volunteers_of(config: RunConfig, split: Split) -> IntArray:
    """Return who volunteered for stage one, drawn once; nobody where features alone are used."""
    count = round(config.volunteers * len(split.train))
    return np.sort(rng(config.seed, 0, "volunteers").choice(split.train, count, replace=False))


def find_noises(config: RunConfig, split: Split) -> tuple[Aggregator, Aggregator]:
    """Return what bounds and noises the updates of stage one and of stage two.

    A private stage one gets its share of ε, and stage two what that leaves of the whole.
    """
    sampling = Sampling(law=config.sampling, users=len(split.train), cohort=config.cohort)
    people = volunteers_of(config, split) if config.stage1 == "public" else split.train
    users = max(len(people), 1)
    items = Sampling(law=config.sampling, users=users, cohort=min(config.stage1_cohort, users))
    first, spent = plain(items), PrivacyLedger()
    if config.stage1 == "private":
        share = config.epsilon and config.epsilon * config.stage1_share
        first = _noised(config, items, PrivacyLedger(), share, stage_one=True)
        spent = spent.record(first.release, config.stage1_rounds)
    return first, _noised(config, sampling, spent, config.epsilon, stage_one=False)


def _noised(
    config: RunConfig,
    sampling: Sampling,
    spent: PrivacyLedger,
    epsilon: float | None,
    *,
    stage_one: bool,
) -> Aggregator:
    if config.mechanism == "none":
        return plain(sampling)
    rounds = config.stage1_rounds if stage_one else config.rounds
    clip_norm = config.stage1_clip_norm if stage_one else config.clip_norm
    multiplier = config.noise_multiplier
    if multiplier is None:
        multiplier = find_noise(
            sampling,
            rounds=rounds,
            epsilon=epsilon,
            delta=config.delta,
            mechanism=config.mechanism,
            spent=spent,
        )
    if config.mechanism == "laplace":
        made = laplace(sampling, clip_norm=clip_norm, noise_multiplier=multiplier)
    else:
        made = gaussian(
            sampling,
            clip_norm=clip_norm,
            noise_multiplier=multiplier,
            clip_quantile=config.clip_quantile or None,
        )
    check_budget(made.release, rounds=rounds, epsilon=epsilon, delta=config.delta, spent=spent)
    return made
