"""The recipes that train the DSSM in one stage: by federated Reptile, or where all data lies."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np

from privrec.algorithms.budgets import sampling_of
from privrec.algorithms.recipe import Recipe
from privrec.algorithms.reptile.adapt import dssm_rankers
from privrec.algorithms.reptile.central import central_round
from privrec.algorithms.reptile.model import network_of
from privrec.algorithms.reptile.phase import local_of, maml_stages, reptile_stages, training_work
from privrec.algorithms.reptile.settings import (
    CentralSettings,
    ItemIdSettings,
    MamlSettings,
    ReptileSettings,
)
from privrec.algorithms.reptile.values import (
    CENTRAL_VALUES,
    MAML_PRESETS,
    MAML_VALUES,
    NOISED_PRESETS,
    NOISED_VALUES,
    PAPER_VALUES,
    PRIVREC_PRESETS,
    PRIVREC_VALUES,
    SGD_PRESETS,
    SGD_VALUES,
)
from privrec.core.optimize import server_optimizer
from privrec.core.phase import TRAIN, CentralFit, ServerState
from privrec.data.federation import Federation
from privrec.data.splits import Split
from privrec.privacy.aggregate import plain
from privrec.types import Params


def central_stages(
    settings: CentralSettings, federation: Federation, split: Split
) -> tuple[CentralFit, ...]:
    """Return the training of the same network where all data lies in one place."""
    network = network_of(settings, federation.catalogue)
    optimizer = server_optimizer(settings.server_optimizer, settings.server_lr)
    sampling = sampling_of(settings.sampling, settings.cohort, split)

    def start(before: Params | None) -> ServerState:
        params = network.fresh()
        opt_state = jax.jit(optimizer.init)(params)
        return ServerState(round_index=0, params=params, opt_state=opt_state, clip_norm=np.inf)

    play = central_round(
        network,
        local_of(settings, network),
        federation,
        optimizer=optimizer,
        draw=partial(sampling.draw, split.train),
        group=settings.group,
        seed=settings.seed,
    )
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
    stages=reptile_stages,
    rankers=dssm_rankers,
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
    stages=maml_stages,
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
    stages=central_stages,
    rankers=dssm_rankers,
    values=CENTRAL_VALUES,
    presets=PRIVREC_PRESETS,
)
DP_PRIVREC_ONE = replace(
    PRIVREC,
    summary="privrec under user-level differential privacy, in one stage",
    values=NOISED_VALUES,
    presets=NOISED_PRESETS,
)
