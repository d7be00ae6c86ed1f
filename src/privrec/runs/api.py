"""The Python side of the command line: open a run, or see what one would cost."""

import math
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.algorithms.recipes import configure, prepare, recipe_named, settings_of
from privrec.core.phase import Stage
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.device import Model, open_model
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs import records
from privrec.runs.run import Run
from privrec.settings import RunSettings
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do: its stages, their privacy cost, and their cost for one phone."""

    config: RunSettings
    stages: tuple[Stage, ...]
    epsilon: float | None
    devices: tuple[DeviceCost, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as `privrec train --dry-run --json` prints it."""
        stages = [
            {"stage": stage.name, "rounds": stage.rounds, **asdict(stage.release.sampling)}
            for stage in self.stages
        ]
        secure = self.config.budget.draws_in_secret
        privacy = {
            "epsilon": self.epsilon if secure else None,
            "epsilon_of_mechanism": self.epsilon,
            "delta": self.config.budget.delta if self.epsilon else None,
        }
        phone = [asdict(share) for share in self.devices]
        return {"stages": stages, "privacy": privacy, "phone": phone}


def plan(recipe: str, data: str | Federation, **settings: Any) -> Plan:
    """Return what a run would do and what it would cost a phone; trains and writes nothing."""
    config = configure(recipe, data if isinstance(data, str) else data.name, settings)
    prepared = prepare(config, load(data) if isinstance(data, str) else data)
    federation, people = prepared.federation, prepared.split.train
    ledger, shares, params = PrivacyLedger(), [], None
    for stage in prepared.stages():
        params = stage.start(params).params
        if not stage.volunteers:
            ledger = ledger.record(stage.release, stage.rounds)
        if stage.device is not None and stage.device.cost is not None:
            shares.append(stage.device.cost(params))
    if params:
        shares.append(_ranking(prepared, params, federation.take(usual_person(federation, people))))
    epsilon = ledger.epsilon(config.budget.delta) if ledger.entries else math.inf
    return Plan(
        config=config,
        stages=prepared.stages(),
        epsilon=None if math.isinf(epsilon) else epsilon,
        devices=tuple(shares),
    )


def _ranking(prepared: PreparedRun, params: Params, person: Clients) -> DeviceCost:
    """Return what it costs one device to get the model once, adapt it and rank all items."""
    scorer = prepared.rankers.adapted(params)
    return DeviceCost(
        what="get the model, rank for herself",
        bytes_down=sum(int(array.nbytes) for array in params.values()),
        bytes_up=0,
        multiply_adds=None,
        milliseconds=milliseconds(lambda: list(scorer(person, person.take(np.arange(1))))),
    )


def open_run(path: str | Path) -> Run:
    """Return the run in a folder."""
    folder, config = records.read_settings(Path(path), settings_of)

    @cache
    def load_prepared() -> PreparedRun:
        return prepare(config, load(config.data))

    return Run(
        folder=folder,
        config=config,
        recipe=recipe_named(config.recipe),
        load_prepared=load_prepared,
    )


def open_released(path: str | Path) -> Model:
    """Return the model of a run folder, or of a file that `privrec export` wrote."""
    return open_model(path) if Path(path).is_file() else open_run(path).model()
