"""A recipe bound to a data set: the model, the stages of its training, and the data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from privrec.central import central_round
from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.splits import Split, split_clients
from privrec.device import adapted_scorer, catalogue_of
from privrec.errors import SettingsError
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import Reference, neighbours
from privrec.federated.local import LocalTrain, local_sgd
from privrec.federated.pack import Instances
from privrec.federated.round import Record, RoundReport, ServerState, server_optimizer
from privrec.history.tower import history_scorer
from privrec.models.api import ITEM_TABLE, Recommender
from privrec.models.dssm import dssm
from privrec.plus import history_stages, layout_for
from privrec.privacy.aggregate import plain
from privrec.privacy.sampling import Sampling
from privrec.recipes import recipe_named
from privrec.seeds import key
from privrec.stages import TRAIN, Stage, federated_stages, packer
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Experiment:
    """A recipe on a data set: `stages()` finds the noise, `scorer(params)` ranks on the device.

    Ranking needs no noise, and finding it takes a moment: so it is done when first asked for.
    `unadapted(params)` ranks without what a person said about items; None where that is the same.
    """

    config: RunConfig
    federation: Federation
    split: Split
    stages: Callable[[], tuple[Stage, ...]]
    scorer: Callable[[Params], Scorer]
    unadapted: Callable[[Params], Scorer] | None = None


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
    if recipe.method == "history":
        return _build_history(config, federation, split)
    sampling = Sampling(law=config.sampling, users=len(split.train), cohort=config.cohort)
    if recipe.method == "central" and (config.mechanism, config.stage1) != ("none", "none"):
        raise SettingsError(
            f'`mechanism` and `stage1` must be "none" for {config.recipe}, which is central'
        )
    recommender = _recommender(config, federation)
    instances = Instances(
        negatives=config.negatives,
        batch_size=config.batch_size,
        dislike_target=config.dislike_target,
        ratings=config.target == "rating",
    )

    @cache
    def stages() -> tuple[Stage, ...]:
        if recipe.method == "central":
            return (_central(config, federation, split, recommender, sampling, instances),)
        made = federated_stages(config, federation, split, recommender, instances)
        return made[:1] if recipe.method == "items" else made

    def scorer(epochs: int) -> Callable[[Params], Scorer]:
        return adapted_scorer(
            recommender,
            _adaptation(config, recommender, epochs),
            federation,
            replace(instances, negatives=config.adapt_negatives),
            seed=config.seed,
        )

    by_neighbours = recipe.method == "items"
    return Experiment(
        config=config,
        federation=federation,
        split=split,
        stages=stages,
        scorer=_by_neighbours if by_neighbours else scorer(config.adapt_epochs),
        unadapted=scorer(0) if config.adapt_epochs and not by_neighbours else None,
    )


def _build_history(config: RunConfig, federation: Federation, split: Split) -> Experiment:
    """Return an experiment of two sums over people and the tower that follows from them."""
    if config.stage1 != "none":
        raise SettingsError(f'`stage1` must be "none" for {config.recipe}, which has its own')
    layout = layout_for(config, federation)

    def scorer(params: Params, *, adapted: bool = True) -> Scorer:
        tower = {name: np.asarray(array) for name, array in params.items()}
        return history_scorer(tower, layout, adapted=adapted)

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        stages=cache(lambda: history_stages(config, federation, split)),
        scorer=scorer,
        unadapted=partial(scorer, adapted=False),
    )


def _by_neighbours(params: Params) -> Scorer:
    return neighbours(np.asarray(params[ITEM_TABLE]))


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


def _adaptation(config: RunConfig, recommender: Recommender, epochs: int) -> LocalTrain:
    return local_sgd(
        recommender,
        learning_rate=config.adapt_lr,
        epochs=epochs,
        batch_size=config.batch_size,
        max_steps=config.adapt_steps or None,
    )


def _central(
    config: RunConfig,
    federation: Federation,
    split: Split,
    recommender: Recommender,
    sampling: Sampling,
    instances: Instances,
) -> Stage:
    optimizer = server_optimizer(config.server_optimizer, config.server_lr)

    def init(before: Params | None) -> ServerState:
        params = jax.jit(recommender.init)(key(config.seed, 0, "init"))
        opt_state = jax.jit(optimizer.init)(params)
        return ServerState(round_index=0, params=params, opt_state=opt_state, clip_norm=np.inf)

    play = central_round(
        recommender,
        sampling=sampling,
        optimizer=optimizer,
        batch_size=config.central_batch_size,
        catalogue=catalogue_of(federation),
        population=split.train,
        pack=packer(config, federation, instances),
        seed=config.seed,
    )
    return _unprepared(config.rounds, sampling, init, play)


def _unprepared(
    rounds: int,
    sampling: Sampling,
    init: Callable[[Params | None], ServerState],
    play: Callable[[ServerState, Record], tuple[ServerState, RoundReport]],
) -> Stage:
    """Return a stage without noise that has nothing to compile beforehand."""
    return Stage(
        name=TRAIN,
        rounds=rounds,
        first=0,
        aggregator=plain(sampling),
        init=init,
        prepare=lambda params: None,
        play=play,
    )


def _build_reference(
    config: RunConfig, federation: Federation, split: Split, reference: Reference
) -> Experiment:
    """Return an experiment of one round, in which all there is to fit is fitted."""
    people = np.concatenate([split.train, split.validation])
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))

    def init(before: Params | None) -> ServerState:
        return ServerState(round_index=0, params={}, opt_state=(), clip_norm=np.inf)

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
        stages=lambda: (_unprepared(1, sampling, init, play),),
        scorer=scorer,
    )
