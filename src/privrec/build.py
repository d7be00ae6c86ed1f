"""A recipe bound to a data set: the model, the algorithm and the data, put together."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import jax.numpy as jnp
import numpy as np

from privrec.central import central_round
from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.splits import Split, split_clients
from privrec.device import adapted_scorer, catalogue_of
from privrec.errors import SettingsError
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import Reference
from privrec.federated.lanes import cohort_runner, warm_up
from privrec.federated.local import LocalTrain, local_sgd
from privrec.federated.pack import Instances, PackedClient, buckets, pack
from privrec.federated.round import (
    FederatedAlgorithm,
    Record,
    RoundReport,
    ServerState,
    federated,
    play_round,
    server_optimizer,
)
from privrec.models.api import Recommender
from privrec.models.dssm import dssm
from privrec.privacy.aggregate import Aggregator, gaussian, laplace, plain
from privrec.privacy.budget import check_budget, find_noise
from privrec.privacy.release import Release
from privrec.privacy.sampling import Sampling
from privrec.recipes import recipe_named
from privrec.seeds import key, rng, secret_rng
from privrec.types import IntArray, Params

PackPeople = Callable[[IntArray, int], list[PackedClient]]
Play = Callable[[ServerState, Record], tuple[ServerState, RoundReport]]
Prepare = Callable[[Params], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """What is needed to play `rounds` rounds.

    `aggregator` has the release of each, `init()` returns the state before the first one,
    `prepare(params)` compiles what the rounds need, `play(state, record)` plays one round.
    """

    rounds: int
    aggregator: Aggregator
    init: Callable[[], ServerState]
    prepare: Prepare
    play: Play

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """A recipe on a data set: `training()` finds the noise, `scorer(params)` ranks on the device.

    Ranking needs no noise, and finding it takes a moment: so it is done when first asked for.
    """

    config: RunConfig
    federation: Federation
    split: Split
    training: Callable[[], Training]
    scorer: Callable[[Params], Scorer]


def build(config: RunConfig, federation: Federation) -> Experiment:
    """Return the experiment of these settings; wrong ones are found before any file is written."""
    recipe = recipe_named(config.recipe)
    split = split_clients(
        federation.n_clients,
        seed=config.seed,
        test_share=config.test_share,
        validation_share=config.validation_share,
    )
    if recipe.reference is not None:
        return _build_reference(config, federation, split, recipe.reference(config))
    sampling = Sampling(law=config.sampling, users=len(split.train), cohort=config.cohort)
    if recipe.method == "central" and config.mechanism != "none":
        raise SettingsError(f'`mechanism` must be "none" for {config.recipe}, which is central')
    recommender = _recommender(config, federation)
    instances = Instances(
        negatives=config.negatives,
        batch_size=config.batch_size,
        dislike_target=config.dislike_target,
        ratings=config.target == "rating",
    )
    pack_people = _packer(config, federation, instances)

    @cache
    def training() -> Training:
        algorithm = federated(
            recommender=recommender,
            local=_local(config, recommender),
            aggregator=_aggregator(config, sampling),
            server_optimizer=server_optimizer(config.server_optimizer, config.server_lr),
        )
        if recipe.method == "central":
            prepare, play = _central(config, federation, split, recommender, sampling, pack_people)
        else:
            sizes = buckets(federation.largest, instances)
            prepare, play = _federated(config, federation, split, algorithm, pack_people, sizes)
        return Training(
            rounds=config.rounds,
            aggregator=algorithm.aggregator,
            init=lambda: algorithm.init(key(config.seed, 0, "init")),
            prepare=prepare,
            play=play,
        )

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        training=training,
        scorer=adapted_scorer(
            recommender,
            _adaptation(config, recommender),
            federation,
            replace(instances, negatives=config.adapt_negatives),
            seed=config.seed,
        ),
    )


def _aggregator(config: RunConfig, sampling: Sampling) -> Aggregator:
    """Return what bounds and noises the updates; the noise is found here where ε is given."""
    if config.mechanism == "none":
        return plain(sampling)
    multiplier = config.noise_multiplier
    if multiplier is None:
        multiplier = find_noise(
            sampling,
            rounds=config.rounds,
            epsilon=config.epsilon,
            delta=config.delta,
            mechanism=config.mechanism,
        )
    if config.mechanism == "laplace":
        made = laplace(sampling, clip_norm=config.clip_norm, noise_multiplier=multiplier)
    else:
        made = gaussian(
            sampling,
            clip_norm=config.clip_norm,
            noise_multiplier=multiplier,
            clip_quantile=config.clip_quantile or None,
        )
    check_budget(made.release, rounds=config.rounds, epsilon=config.epsilon, delta=config.delta)
    return made


def _recommender(config: RunConfig, federation: Federation) -> Recommender:
    return dssm(
        federation.schema,
        federation.n_items,
        embedding_size=config.embedding_size,
        tower_size=config.tower_size,
        hidden=config.hidden,
        activation=config.activation,
        target=config.target,
        embedding_scale=config.embedding_scale,
    )


def _local(config: RunConfig, recommender: Recommender) -> LocalTrain:
    return local_sgd(
        recommender,
        learning_rate=config.local_lr,
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        max_steps=config.local_steps or None,
    )


def _adaptation(config: RunConfig, recommender: Recommender) -> LocalTrain:
    return local_sgd(
        recommender,
        learning_rate=config.adapt_lr,
        epochs=config.adapt_epochs,
        batch_size=config.batch_size,
        max_steps=config.adapt_steps or None,
    )


def _packer(config: RunConfig, federation: Federation, instances: Instances) -> PackPeople:
    def pack_people(people: IntArray, round_index: int) -> list[PackedClient]:
        return pack(
            federation.take(people),
            instances,
            n_items=federation.n_items,
            seed=config.seed,
            round_index=round_index,
        )

    return pack_people


def _federated(
    config: RunConfig,
    federation: Federation,
    split: Split,
    algorithm: FederatedAlgorithm,
    pack_people: PackPeople,
    sizes: list[int],
) -> tuple[Prepare, Play]:
    run_cohort = cohort_runner(algorithm.local, algorithm.aggregator.clip, catalogue_of(federation))

    def prepare(params: Params) -> None:
        (example,) = pack_people(split.train[:1], 0)
        warm_up(run_cohort, params, example=example, buckets=sizes, n_items=federation.n_items)

    def play(state: ServerState, record: Record) -> tuple[ServerState, RoundReport]:
        # A cohort that can be guessed amplifies nothing: secure noise comes with a secret draw.
        seeded = config.noise == "seeded"
        return play_round(
            algorithm,
            state,
            population=split.train,
            pack=pack_people,
            run_cohort=run_cohort,
            draw=rng(config.seed, state.round_index, "cohort") if seeded else secret_rng(),
            record=record,
        )

    return prepare, play


def _central(
    config: RunConfig,
    federation: Federation,
    split: Split,
    recommender: Recommender,
    sampling: Sampling,
    pack_people: PackPeople,
) -> tuple[Prepare, Play]:
    play = central_round(
        recommender,
        sampling=sampling,
        optimizer=server_optimizer(config.server_optimizer, config.server_lr),
        batch_size=config.central_batch_size,
        catalogue=catalogue_of(federation),
        population=split.train,
        pack=pack_people,
        seed=config.seed,
    )
    return _need_nothing, play


def _build_reference(
    config: RunConfig, federation: Federation, split: Split, reference: Reference
) -> Experiment:
    """Return an experiment of one round, in which all there is to fit is fitted."""
    people = np.concatenate([split.train, split.validation])
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))

    def init() -> ServerState:
        return ServerState(round_index=0, params={}, opt_state=(), clip_norm=math.inf)

    def play(state: ServerState, record: Record) -> tuple[ServerState, RoundReport]:
        record(state)
        arrays = reference.fit(federation, people)
        params = {name: jnp.asarray(array) for name, array in arrays.items()}
        after = replace(state, round_index=state.round_index + 1, params=params)
        return after, RoundReport(round_index=state.round_index, clients=len(people), loss=None)

    def scorer(params: Params) -> Scorer:
        return reference.scorer({name: np.asarray(array) for name, array in params.items()})

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        training=lambda: Training(
            rounds=1, aggregator=plain(sampling), init=init, prepare=_need_nothing, play=play
        ),
        scorer=scorer,
    )


def _need_nothing(params: Params) -> None:
    """Prepare nothing."""
