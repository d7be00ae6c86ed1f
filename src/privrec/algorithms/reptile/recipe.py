"""The recipes that train the DSSM in one stage: by federated Reptile or MAML, or centrally.

With Laplace noise, an update is bounded in the L1 norm, so all numbers of the update share the
bound S. Everybody contributes to a dense weight, so its sum is far above the noise. Only the people
who have an item contribute to its row. So devices multiply the item rows by `item_weight` before
clipping, and the item rows use nearly all of S.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from privrec.algorithms.budgets import sampling_of
from privrec.algorithms.recipe import Recipe, Task
from privrec.algorithms.reptile.adapt import dssm_plan
from privrec.algorithms.reptile.dssm import Network, network_of
from privrec.algorithms.reptile.phase import (
    local_of,
    maml_training,
    one_stage,
    reptile_stages,
    reptile_training,
)
from privrec.algorithms.reptile.settings import (
    CENTRAL_VALUES,
    LAPLACE_PRESETS,
    LAPLACE_VALUES,
    MAML_PRESETS,
    MAML_VALUES,
    NOISED_PRESETS,
    NOISED_VALUES,
    PAPER_VALUES,
    PRIVREC_PRESETS,
    PRIVREC_VALUES,
    SGD_PRESETS,
    SGD_VALUES,
    CentralSettings,
    ItemIdSettings,
    LaplaceSettings,
    MamlSettings,
    ReptileSettings,
)
from privrec.algorithms.training import Training, training_work
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, Advance, CentralFit, RoundReport, ServerState
from privrec.core.round import cohort_draw
from privrec.core.training import LocalResult, LocalTrain, mean_step, server_optimizer
from privrec.data.schema import Bags
from privrec.privacy.aggregate import plain
from privrec.simulate.lanes import cohort_runner
from privrec.types import Params


def laplace_training(task: Task[LaplaceSettings], network: Network) -> Training:
    """Return the training of federated Reptile, with item rows multiplied by `item_weight`."""
    training = reptile_training(task, network)
    return replace(training, local=weighted(training.local, task.settings.item_weight))


@lru_cache(maxsize=16)
def weighted(local: LocalTrain, item_weight: float) -> LocalTrain:
    """Return `local` with the item rows of its update multiplied by `item_weight`."""

    def train(params: Params, catalogue: Bags, client: Any) -> LocalResult:
        update, loss = local(params, catalogue, client)
        return LocalResult({**update, ITEM_TABLE: item_weight * update[ITEM_TABLE]}, loss)

    return train


LM_PRIVREC = Recipe(
    summary="privrec under Laplace noise, updates bounded in the L1 norm, in a few rounds",
    settings=LaplaceSettings,
    server_sees="updates",
    plan=partial(dssm_plan, partial(one_stage, laplace_training)),
    values=LAPLACE_VALUES,
    presets=LAPLACE_PRESETS,
)


def central_stages(task: Task[CentralSettings]) -> tuple[CentralFit, ...]:
    """Return the single stage of central Reptile training on the DSSM.

    Each person is a task of Reptile. Central training sends no messages, so the optimizer takes a
    step after every `group` tasks, not only one step per round.
    """
    settings, federation, split = task.settings, task.federation, task.split
    network, group = network_of(settings, federation.catalogue), settings.group
    optimizer = server_optimizer(settings.server_optimizer, settings.server_lr)
    sampling = sampling_of(settings.sampling, settings.cohort, split)
    randomness = cohort_draw(settings.seed, secret=False)
    train = cohort_runner(local_of(settings, network), "l2", network.items)
    step = mean_step(optimizer, group)

    def start(before: Params | None) -> ServerState:
        params = network.fresh()
        opt_state = jax.jit(optimizer.init)(params)
        return ServerState(round_index=0, params=params, opt_state=opt_state, clip_norm=np.inf)

    def play(state: ServerState, advance: Advance) -> tuple[ServerState, RoundReport]:
        number, params, opt_state, loss = state.round_index, state.params, state.opt_state, 0.0
        people = sampling.draw(split.train, randomness(number))
        clients = network.pack(federation.take(people), number)
        for begin in range(0, len(clients), group):
            total = train(params, clients[begin : begin + group], math.inf, advance)
            params, opt_state = step(params, opt_state, total.update)
            loss += float(total.loss)
        after = replace(state, round_index=number + 1, params=params, opt_state=opt_state)
        mean = loss / max(len(people), 1)
        return after, RoundReport(round_index=number, clients=len(people), loss=mean)

    return (
        CentralFit(
            name=TRAIN,
            rounds=settings.rounds,
            aggregator=plain(sampling),
            start=start,
            play=play,
            work=partial(training_work, network.fresh, optimizer, noised=False),
        ),
    )


PRIVREC = Recipe(
    summary="federated Reptile on the DSSM, server Adam, many short local trainings",
    settings=ReptileSettings,
    server_sees="updates",
    plan=partial(dssm_plan, reptile_stages),
    values={**PRIVREC_VALUES, "patience": 3},
    presets=PRIVREC_PRESETS,
)
PRIVREC_PAPER = replace(
    PRIVREC,
    summary="the paper's printed settings: few rounds, 100 local epochs, plain averaging",
    values=PAPER_VALUES,
    presets={"frappe": {"rounds": 40, "cohort": 30}},
)
FOFL_SELF = replace(
    PRIVREC,
    summary="federated Reptile on items' ids alone (Jalalirad and others, 2019)",
    settings=ItemIdSettings,
    values=PRIVREC_VALUES,
)
NN_SELF = replace(
    PRIVREC,
    summary="federated MAML of second order on the same network (Chen and others, 2018)",
    settings=MamlSettings,
    plan=partial(dssm_plan, partial(one_stage, maml_training)),
    values=MAML_VALUES,
    presets=MAML_PRESETS,
)
PRIVREC_SGD = replace(
    PRIVREC,
    summary="one gradient over all of a device's data, in training and in adaptation (PrivRec-SGD)",
    values=SGD_VALUES,
    presets=SGD_PRESETS,
)
PRIVREC_CEN = Recipe(
    summary="the same network and tasks trained in one place, adapted on the device as usual",
    settings=CentralSettings,
    server_sees="everything",
    plan=partial(dssm_plan, central_stages),
    values=CENTRAL_VALUES,
    presets=PRIVREC_PRESETS,
)
DP_PRIVREC_ONE = replace(
    PRIVREC,
    summary="privrec under user-level differential privacy, in one stage",
    values=NOISED_VALUES,
    presets=NOISED_PRESETS,
)
