"""A recipe together with a data set: the stages of its training, the data, and how it ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.budgets import sampling_of
from privrec.algorithms.privrec_plus.phases import history_stages
from privrec.algorithms.rankers import Rankers, instances_of, rankers, recommender_of
from privrec.algorithms.recipes import recipe_named
from privrec.algorithms.reptile.central import central_round
from privrec.algorithms.two_stage.phases import TRAIN, Task, federated_stages, packer
from privrec.core.optimize import server_optimizer
from privrec.core.phase import CentralFit, RoundReport, ServerState, Stage
from privrec.data.federation import Federation
from privrec.data.splits import Split, split_clients
from privrec.errors import SettingsError
from privrec.evaluation.references import Reference
from privrec.privacy.aggregate import plain
from privrec.privacy.budget import refuse_large_delta
from privrec.privacy.sampling import Sampling
from privrec.seeds import key
from privrec.settings import RunConfig
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedRun:
    """A recipe on a data set: `stages()` finds the noise, `rankers` rank on the device.

    The noise is calibrated at the first call of `stages()`, because it takes time and ranking does
    not need it.
    """

    config: RunConfig
    federation: Federation
    split: Split
    stages: Callable[[], tuple[Stage, ...]]
    rankers: Rankers


def prepare(config: RunConfig, federation: Federation) -> PreparedRun:
    """Return the prepared run; wrong settings raise here, before any file is written."""
    recipe = recipe_named(config.recipe)
    split = split_clients(
        federation.ids(np.arange(federation.n_clients)),
        seed=config.seed,
        test_share=config.test_share,
        validation_share=config.validation_share,
        people=federation.people,
    )
    if config.mechanism != "none":
        most = max(split.public_train, config.train_people)
        refuse_large_delta(config.delta, most, forced=config.force_delta)
    if config.train_people:
        split = replace(split, public_train=config.train_people)
    if recipe.method == "history" and config.stage1 != "none":
        raise SettingsError(f'`stage1` must be "none" for {config.recipe}, which has its own')
    central = recipe.method in ("central", "reference")
    if central and (config.mechanism, config.stage1) != ("none", "none"):
        raise SettingsError(
            f'`mechanism` and `stage1` must be "none" for {config.recipe}, which is central'
        )

    @cache
    def stages() -> tuple[Stage, ...]:
        if recipe.reference is not None:
            return (_fitted(federation, split, recipe.reference(config)),)
        if recipe.method == "history":
            return history_stages(config, federation, split)
        if recipe.method == "central":
            return (_central(config, federation, split),)
        recommender = recommender_of(config, federation.catalogue)
        task = Task(
            config=config,
            federation=federation,
            split=split,
            recommender=recommender,
            instances=instances_of(config),
        )
        made = federated_stages(task)
        return made[:1] if recipe.method == "items" else made

    return PreparedRun(
        config=config,
        federation=federation,
        split=split,
        stages=stages,
        rankers=rankers(config, federation.catalogue),
    )


def _central(config: RunConfig, federation: Federation, split: Split) -> CentralFit:
    recommender = recommender_of(config, federation.catalogue)
    optimizer = server_optimizer(config.server_optimizer, config.server_lr)
    sampling = sampling_of(
        config.sampling, config.cohort, true=len(split.train), public=split.public_train
    )

    def init(before: Params | None) -> ServerState:
        params = jax.jit(recommender.init)(key(config.seed, 0, "init"))
        opt_state = jax.jit(optimizer.init)(params)
        return ServerState(round_index=0, params=params, opt_state=opt_state, clip_norm=np.inf)

    play = central_round(
        recommender,
        sampling=sampling,
        optimizer=optimizer,
        batch_size=config.central_batch_size,
        catalogue=dict(federation.items),
        population=split.train,
        pack=packer(config, federation, instances_of(config)),
        seed=config.seed,
    )
    return CentralFit(
        name=TRAIN, rounds=config.rounds, aggregator=plain(sampling), start=init, play=play
    )


def _fitted(federation: Federation, split: Split, reference: Reference) -> CentralFit:
    """Return a central fit of one round, which fits the whole reference."""
    people = np.concatenate([split.train, split.validation])
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))

    def init(before: Params | None) -> ServerState:
        return ServerState(round_index=0, params={}, opt_state=(), clip_norm=np.inf)

    def play(state: ServerState) -> tuple[ServerState, RoundReport]:
        arrays = reference.fit(federation, people)
        params = {name: jnp.asarray(array) for name, array in arrays.items()}
        after = replace(state, round_index=state.round_index + 1, params=params)
        return after, RoundReport(round_index=state.round_index, clients=len(people), loss=None)

    return CentralFit(name=TRAIN, rounds=1, aggregator=plain(sampling), start=init, play=play)
