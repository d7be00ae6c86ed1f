"""A recipe bound to a data set: the model, the algorithm and the data, put together."""

from collections.abc import Callable
from dataclasses import dataclass, replace

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
from privrec.federated.cohort import fixed_size
from privrec.federated.lanes import cohort_runner, warm_up
from privrec.federated.local import LocalTrain, local_sgd
from privrec.federated.pack import Instances, PackedClient, buckets, pack
from privrec.federated.round import (
    FederatedAlgorithm,
    RoundReport,
    ServerState,
    federated,
    play_round,
    server_optimizer,
)
from privrec.models.api import Recommender
from privrec.models.dssm import dssm
from privrec.recipes import recipe_named
from privrec.seeds import key
from privrec.types import IntArray, Params

PackPeople = Callable[[IntArray, int], list[PackedClient]]
Play = Callable[[ServerState], tuple[ServerState, RoundReport]]
Prepare = Callable[[Params], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """What is needed to train a recipe on a data set and to rank with the result.

    `init()` returns the state before the first round, `prepare(params)` compiles what the rounds
    need, `play(state)` plays one round, `scorer(params)` ranks after adapting on the device.
    """

    config: RunConfig
    federation: Federation
    split: Split
    init: Callable[[], ServerState]
    prepare: Prepare
    play: Play
    scorer: Callable[[Params], Scorer]


def build(config: RunConfig, federation: Federation) -> Experiment:
    """Return the experiment of these settings; wrong ones are found here, before any file."""
    recipe = recipe_named(config.recipe)
    split = split_clients(
        federation.n_clients,
        seed=config.seed,
        test_share=config.test_share,
        validation_share=config.validation_share,
    )
    if recipe.reference is not None:
        return _build_reference(config, federation, split, recipe.reference(config))
    if config.cohort > len(split.train):
        raise SettingsError(
            f"`cohort` must be <= {len(split.train)}, the people who train; got {config.cohort}"
        )
    recommender = _recommender(config, federation)
    algorithm = federated(
        recommender=recommender,
        local=_local(config, recommender),
        sampler=fixed_size(config.cohort),
        server_optimizer=server_optimizer(config.server_optimizer, config.server_lr),
    )
    instances = Instances(
        negatives=config.negatives,
        batch_size=config.batch_size,
        dislike_target=config.dislike_target,
        ratings=config.target == "rating",
    )
    pack_people = _packer(config, federation, instances)
    if recipe.method == "central":
        prepare, play = _central(config, federation, split, recommender, pack_people)
    else:
        largest = buckets(federation.largest, instances)
        prepare, play = _federated(config, federation, split, algorithm, pack_people, largest)
    return Experiment(
        config=config,
        federation=federation,
        split=split,
        init=lambda: algorithm.init(key(config.seed, 0, "init")),
        prepare=prepare,
        play=play,
        scorer=adapted_scorer(
            recommender,
            _adaptation(config, recommender),
            federation,
            replace(instances, negatives=config.adapt_negatives),
            seed=config.seed,
        ),
    )


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
    run_cohort = cohort_runner(algorithm.local, catalogue_of(federation))

    def prepare(params: Params) -> None:
        (example,) = pack_people(split.train[:1], 0)
        warm_up(run_cohort, params, example=example, buckets=sizes, n_items=federation.n_items)

    def play(state: ServerState) -> tuple[ServerState, RoundReport]:
        return play_round(
            algorithm,
            state,
            population=split.train,
            pack=pack_people,
            run_cohort=run_cohort,
            seed=config.seed,
        )

    return prepare, play


def _central(
    config: RunConfig,
    federation: Federation,
    split: Split,
    recommender: Recommender,
    pack_people: PackPeople,
) -> tuple[Prepare, Play]:
    play = central_round(
        recommender,
        sampler=fixed_size(config.cohort),
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
    """Return an experiment of no rounds: what there is to fit is fitted at the start."""

    def init() -> ServerState:
        arrays = reference.fit(federation, np.concatenate([split.train, split.validation]))
        params = {name: jnp.asarray(array) for name, array in arrays.items()}
        return ServerState(round_index=config.rounds, params=params, opt_state=())

    def play(state: ServerState) -> tuple[ServerState, RoundReport]:
        raise SettingsError(f"{config.recipe} has no rounds to play; got round {state.round_index}")

    def scorer(params: Params) -> Scorer:
        return reference.scorer({name: np.asarray(array) for name, array in params.items()})

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        init=init,
        prepare=_need_nothing,
        play=play,
        scorer=scorer,
    )


def _need_nothing(params: Params) -> None:
    """Prepare nothing."""
