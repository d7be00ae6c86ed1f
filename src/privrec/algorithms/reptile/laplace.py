"""Federated Reptile under Laplace noise, where what a person may add is bounded in the L1 norm.

The bound S is shared by all d numbers of an update. A dense weight gets a little from everybody, so
its sum is far above the noise; the row of an item gets something from those who have it. So devices
multiply the rows by `item_weight` before the bound: nearly all of S is then spent on the rows.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.recipe import Recipe
from privrec.algorithms.reptile.adapt import dssm_rankers
from privrec.algorithms.reptile.model import network_of
from privrec.algorithms.reptile.phase import training_of, training_phase
from privrec.algorithms.reptile.settings import ReptileSettings
from privrec.algorithms.reptile.values import LAPLACE_PRESETS, LAPLACE_VALUES
from privrec.core.local import LocalResult, LocalTrain
from privrec.core.optimize import server_optimizer
from privrec.core.phase import TRAIN, Phase
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.data.splits import Split
from privrec.models.api import ITEM_TABLE
from privrec.settings import Positive
from privrec.types import Params


class LaplaceSettings(ReptileSettings):
    """The DSSM trained by federated Reptile with Laplace noise."""

    item_weight: Positive = 1.0
    """Multiplies the item rows of an update before it is bounded. Above 1, more of the bound is
    spent on the items, and they move faster than the rest."""


def laplace_stages(
    settings: LaplaceSettings, federation: Federation, split: Split
) -> tuple[Phase, ...]:
    """Return the one phase of federated Reptile in which item rows have their own weight."""
    network = network_of(settings, federation.catalogue)
    training = training_of(settings, network, federation, split)
    return (
        training_phase(
            replace(training, local=weighted(training.local, settings.item_weight)),
            name=TRAIN,
            first=0,
            rounds=settings.rounds,
            population=split.train,
            aggregator=aggregator_of(settings, split),
            optimizer=server_optimizer(settings.server_optimizer, settings.server_lr),
            start=lambda before: network.fresh(),
            model=network.fresh,
        ),
    )


@lru_cache(maxsize=16)
def weighted(local: LocalTrain, item_weight: float) -> LocalTrain:
    """Return the local training whose update has `item_weight` times the item rows."""

    def train(params: Params, catalogue: Bags, client: Any) -> LocalResult:
        update, loss = local(params, catalogue, client)
        return LocalResult({**update, ITEM_TABLE: item_weight * update[ITEM_TABLE]}, loss)

    return train


LM_PRIVREC = Recipe(
    summary="privrec under Laplace noise, updates bounded in the L1 norm, in a few rounds",
    settings=LaplaceSettings,
    server_sees="updates",
    stages=laplace_stages,
    rankers=dssm_rankers,
    values=LAPLACE_VALUES,
    presets=LAPLACE_PRESETS,
)
