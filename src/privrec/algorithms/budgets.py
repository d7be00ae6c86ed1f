"""From a run's privacy budget to the clipping bound and the noise of each of its stages."""

from privrec.data.federation import Federation
from privrec.data.splits import Split, chosen
from privrec.privacy.aggregate import Aggregator, gaussian, laplace, plain
from privrec.privacy.budget import check_budget, find_noise
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.sampling import Law, Sampling
from privrec.settings import RunConfig
from privrec.types import IntArray


def volunteers_of(config: RunConfig, federation: Federation, split: Split) -> IntArray:
    """Return the volunteers for stage one; a hash of seed and id decides for each person alone."""
    ids = federation.ids(split.train)
    return split.train[chosen(ids, config.volunteers, seed=config.seed, purpose="volunteers")]


def sampling_of(law: Law, cohort: int, *, true: int, public: int) -> Sampling:
    """Return how cohorts are sampled; `true` people train, `public` is their public number.

    Poisson sampling takes its probability from the public number. Fixed-size sampling takes the
    true number: its guarantee compares data sets of the same size, so it does not protect that
    number.
    """
    return Sampling(law=law, users=true if law == "fixed" else public, cohort=cohort)


def stage_aggregators(
    config: RunConfig, federation: Federation, split: Split
) -> tuple[Aggregator, Aggregator]:
    """Return the aggregators (clipping and noise) of stage one and of stage two.

    A private stage one gets its share of ε. Stage two gets the rest of ε.
    """
    public, true = split.public_train, len(split.train)
    sampling = sampling_of(config.sampling, config.cohort, true=true, public=public)
    if config.stage1 == "public":
        true = max(len(volunteers_of(config, federation, split)), 1)
        public = max(round(config.volunteers * public), 1)
    most = true if config.sampling == "fixed" else public
    cohort = min(config.stage1_cohort, most)
    items = sampling_of(config.sampling, cohort, true=true, public=public)
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
