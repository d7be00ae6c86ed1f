"""Python functions that open a run folder or estimate the cost of a run."""

import math
from dataclasses import asdict, dataclass
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipe import Plan as RunPlan
from privrec.algorithms.recipes import configure, prepare, recipe_named, settings_of
from privrec.core.phase import Stage
from privrec.data.clients import Clients
from privrec.data.sources import BUILT_IN, load_begun, named
from privrec.data.text import short
from privrec.device import Model, open_model
from privrec.errors import DataError, check_kind
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs import folder as records
from privrec.runs.evaluate import nobody_to_test
from privrec.runs.forecast import Forecast, forecast, of_choice
from privrec.runs.loop import too_few_to_learn, with_settings
from privrec.runs.run import Run
from privrec.settings import RunSettings
from privrec.simulate.cost import DeviceCost, check_memory, milliseconds, usual_person
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages of a run, and its costs: privacy, and the work of a phone and of this machine.

    `choice` is the cost of choosing settings before the training; None if no settings are chosen.
    If some are chosen, `stages` are those of the largest run that may follow.

    `catalogue` is the number of items. `items` is the number of items with their own vector; None
    if the recipe does not choose these items. `path` says which variant of the training is used and
    why; it is empty if the recipe has only one variant. `warnings` say if there are too few people
    to learn from or nobody to test.
    """

    config: RunSettings
    stages: tuple[Stage, ...]
    epsilon: float | None
    devices: tuple[DeviceCost, ...]
    machine: tuple[Forecast, ...]
    catalogue: int
    items: int | None
    choice: Forecast | None = None
    path: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        stages = ", ".join(f"{stage.name} × {stage.rounds:,}" for stage in self.stages)
        known = self.time_seconds
        seconds = "time not estimated" if known is None else f"about {known:.0f} s"
        return (
            f"Plan({short(self.config.recipe)} on {short(self.config.data)}: {short(stages, 300)};"
            f" epsilon={self.epsilon}, {seconds}, {self.peak_bytes / 1e9:.1f} GB of memory)"
        )

    @property
    def time_seconds(self) -> float | None:
        """The seconds of the run on this machine; None if a stage has no estimate."""
        known = [share.time_seconds for share in self._shares if share.time_seconds is not None]
        return sum(known) if len(known) == len(self._shares) else None

    @property
    def peak_bytes(self) -> int:
        """The peak memory of the run on this machine, in bytes."""
        return max((share.peak_bytes for share in self._shares), default=0)

    @property
    def _shares(self) -> tuple[Forecast, ...]:
        return self.machine if self.choice is None else (self.choice, *self.machine)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `privrec train --dry-run --json` prints."""
        stages = [
            {
                "stage": stage.name,
                "rounds": stage.rounds,
                **asdict(stage.release.sampling),
                "time_seconds": share.time_seconds,
                "peak_bytes": share.peak_bytes,
            }
            for stage, share in zip(self.stages, self.machine, strict=True)
        ]
        secure = self.config.budget.draws_in_secret
        privacy = {
            "epsilon": self.epsilon if secure else None,
            "epsilon_of_mechanism": self.epsilon,
            "delta": self.config.budget.delta if self.epsilon else None,
        }
        phone = [asdict(share) for share in self.devices]
        choice = None if self.choice is None else asdict(self.choice)
        return {
            "choice": choice,
            "stages": stages,
            "privacy": privacy,
            "phone": phone,
            "time_seconds": self.time_seconds,
            "peak_bytes": self.peak_bytes,
            "items": {"in_catalogue": self.catalogue, "with_vector": self.items},
            "path": list(self.path),
            "warnings": list(self.warnings),
        }


def plan(recipe: str, data: object, **settings: Any) -> Plan:
    """Return the stages and the estimated costs of a run; writes no file."""
    name, read = named(data)
    config = configure(recipe, name, settings)
    prepared = prepare(config, read())
    ahead = None
    if (choice := recipe_named(recipe).choice) is not None:
        prepared = with_settings(prepared, choice.usual(prepared.task, settings))
        if (ahead := choice.ahead(prepared.task, settings)) is not None:
            prepared = with_settings(prepared, ahead.values)
        config = prepared.task.settings
    federation, people = prepared.task.federation, prepared.task.split.train
    check_memory(prepared.stages())
    machine = forecast(prepared)
    chosen = None if ahead is None else of_choice(ahead.candidates)
    ledger, shares, params = PrivacyLedger(), [], None
    for stage in prepared.stages():
        params = stage.start(params).params
        ledger = ledger.record(stage.release, stage.rounds)
        if stage.device is not None and stage.device.cost is not None:
            shares.append(stage.device.cost(params))
    if params:
        shares.append(_ranking(prepared, params, federation.take(usual_person(federation, people))))
    known = recipe_named(recipe)
    counted, path = known.items_with_vector, known.path
    epsilon = ledger.epsilon(config.budget.delta) if ledger.entries else math.inf
    return Plan(
        config=config,
        stages=prepared.stages(),
        epsilon=None if math.isinf(epsilon) else epsilon,
        devices=tuple(shares),
        machine=machine,
        choice=chosen,
        catalogue=federation.n_items,
        items=None if counted is None else counted(config, federation.catalogue),
        path=() if path is None else tuple(path(prepared.task, prepared.stages())),
        warnings=tuple(filter(None, (too_few_to_learn(prepared), nobody_to_test(prepared)))),
    )


def _ranking(prepared: RunPlan, params: Params, person: Clients) -> DeviceCost:
    """Return the cost for one device to download the model, adapt it and rank all items."""
    scorer = prepared.ranker(params)
    return DeviceCost(
        what="get the model, rank for herself",
        bytes_down=sum(int(array.nbytes) for array in params.values()),
        bytes_up=0,
        multiply_adds=None,
        milliseconds=milliseconds(lambda: list(scorer(person, person.take(np.arange(1))))),
    )


def open_run(path: str | Path, *, data: object = None) -> Run:
    """Return the run in a folder.

    `data` is the frame of the training data, or what `load` returned for the frame. It is needed
    only if the data cannot be loaded by name. Recommendations for newcomers need no data.
    """
    check_kind("path", path, (str, PathLike), "a run folder")
    folder, config = records.read_settings(Path(path), settings_of)

    load_prepared = cache(partial(_prepared, folder, config, data))
    if data is not None and folder.data_path.is_file():
        records.check_data(folder, load_prepared().task.federation.fingerprint)

    return Run(
        folder=folder,
        config=config,
        recipe=recipe_named(config.recipe),
        load_prepared=load_prepared,
    )


def _prepared(folder: records.RunFolder, config: RunSettings, data: object) -> RunPlan:
    named_or_given = _name_of_data(config) if data is None else data
    return prepare(config, load_begun(named_or_given, partial(records.read_catalogue, folder)))


def _name_of_data(config: RunSettings) -> str:
    """Return the name of the data in the settings; raise if the data was an unnamed frame."""
    if config.data.partition(":")[0] in BUILT_IN or Path(config.data).exists():
        return config.data
    raise DataError(
        f"the data {config.data!r} of the run is no built-in name and no folder here; if the run"
        " was trained in Python on a frame, give it again: privrec.open_run(path, data=frame)"
    )


def open_released(path: str | Path) -> Model:
    """Return the model of a run folder, or of a file that `privrec export` wrote."""
    return open_model(path) if Path(path).is_file() else open_run(path).model()
