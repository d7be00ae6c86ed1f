"""The Python functions behind the command line: train, plan, open a run, evaluate, recommend."""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.algorithms.recipes import configure, prepare, recipe_named, settings_of
from privrec.core.phase import Stage
from privrec.data.catalogue import Catalogue, from_json, to_json
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.device import Device, Model, open_model
from privrec.errors import DataError, RunFolderError, SettingsError
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import PrivacyReport, privacy_report
from privrec.runs import records
from privrec.runs.loop import Evaluation, OnProgress, evaluate_run, load_params, play_stages
from privrec.runs.protocols import ending_of, tested_by
from privrec.runs.publisher import ledger_of, noise_of, volunteer_count
from privrec.settings import RunSettings
from privrec.show.report import render_report
from privrec.simulate.cost import DeviceCost, milliseconds, usual_person
from privrec.types import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An open run folder. The data is loaded only when needed; ranking does not need it."""

    folder: records.RunFolder
    config: RunSettings
    load_prepared: Callable[[], PreparedRun]

    @property
    def prepared(self) -> PreparedRun:
        """The recipe bound to its data."""
        return self.load_prepared()

    def evaluate(
        self,
        *,
        protocol: str | None = None,
        candidates: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Evaluation:
        """Return the figures on the test people, by the run's own protocol or another one.

        Writes `evaluation.json` and `report.html` to `simulation/`, or files that are named for
        the protocol where it is not the run's own.
        """
        if self.folder.data_path.is_file():
            records.check_data(self.folder, self.prepared.federation.fingerprint)
        tested = tested_by(self.prepared, protocol, candidates)
        params = load_params(self.folder)
        evaluation = evaluate_run(tested, params, self.privacy(), on_progress=on_progress)
        found = evaluation.as_json()
        text = json.dumps(found, indent=2) + "\n"
        ending = ending_of(self.prepared, tested)
        place = self.folder.evaluation_path.with_stem(f"evaluation{ending}")
        records.write_whole(place, text.encode())
        page = render_report(found, self.figures, self.config.model_dump())
        records.write_whole(self.report_path(protocol, candidates), page.encode())
        return evaluation

    def report_path(self, protocol: str | None = None, candidates: str | None = None) -> Path:
        """Return where `evaluate` writes the report for people."""
        ending = ending_of(self.prepared, tested_by(self.prepared, protocol, candidates))
        return self.folder.report_path.with_stem(f"report{ending}")

    @property
    def figures(self) -> list[dict[str, Any]]:
        """What each round did, from raw data; empty under secure noise without `diagnostics`."""
        return records.read_rounds(self.folder.figures_path)

    @property
    def rounds(self) -> int:
        """How many rounds were played; fewer than asked for if the budget ended first."""
        return len(records.read_rounds(self.folder.rounds_path))

    @property
    def ledger(self) -> PrivacyLedger:
        """Every release of the run, as its folder has them."""
        return ledger_of(self.folder)

    @property
    def catalogue(self) -> Catalogue:
        """The items and features that the run was trained with, as its folder has them."""
        path = self.folder.catalogue_path
        with records.words(path, "read"):
            return from_json(path.read_bytes(), str(path))

    def privacy(self) -> PrivacyReport:
        """Return what the run promises, by its ledger."""
        ledger = self.ledger
        if ledger.is_private and ledger.entries and not self.config.budget.force_delta:
            users = max(release.sampling.users for release, _ in ledger.entries)
            refuse_large_delta(self.config.budget.delta, users, forced=False)
        return privacy_report(
            ledger,
            delta=self.config.budget.delta,
            noise=noise_of(self.folder),
            without=recipe_named(self.config.recipe).without_noise,
            server=recipe_named(self.config.recipe).server,
            volunteers=volunteer_count(self.folder),
            second=ledger_of(self.folder, only_noised=True),
            undeclared=self.catalogue.undeclared,
        )

    def model(self) -> Model:
        """Return everything that may be released, in the form that a phone gets."""
        return Model(
            params={name: np.asarray(a) for name, a in load_params(self.folder).items()},
            catalogue=self.catalogue,
            settings=self.config.model_dump(mode="json", exclude_none=True),
            privacy=self.privacy().as_json(),
        )

    def device(
        self,
        *,
        likes: Sequence[str] = (),
        dislikes: Sequence[str] = (),
        features: Mapping[str, object] | None = None,
    ) -> Device:
        """Return a newcomer's device, with the trained model and her own data on it."""
        return self.model().device(likes=likes, dislikes=dislikes, features=features)


def train(
    recipe: str,
    data: str | Federation,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    strict: bool = False,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Run:
    """Return a finished run of a recipe; the same as `privrec train`.

    Without `out` the run folder is temporary. With `resume` the interrupted run in `out` continues
    from its last checkpoint, on the same data and with the settings it was started with. Settings
    need not be given again; different ones are refused. With `strict` a run under noise is refused
    if the model's shape or scale would be computed from people's data.
    """
    name = data if isinstance(data, str) else data.name
    path = None if out is None else Path(out)
    started = _started(path) if resume else None
    if started is None:
        config = configure(recipe, name, settings)
    else:
        _check_same(started[0], started[1], {"recipe": recipe, "data": name})
        before = started[1].model_dump(exclude_none=True)
        config = configure(recipe, name, {**before, **settings})
        _check_same(*started, config.model_dump())
    prepared = prepare(config, load(data) if isinstance(data, str) else data)
    config, federation = prepared.config, prepared.federation
    if strict and config.budget.mechanism != "none":
        _refuse_undeclared(federation)
    prepared.stages()  # Wrong settings are found before any file is written.
    if started is None:
        path = path or Path(tempfile.mkdtemp(prefix="privrec-"))
        public = to_json(federation.catalogue)
        folder = records.create_run(path, config, public, federation.fingerprint)
    else:
        folder = started[0]
        records.check_data(folder, federation.fingerprint)
    with records.locked(folder):
        if not folder.params_path.is_file():
            resume = started is not None
            records.clear_leftovers(folder)
            play_stages(prepared, folder, resume=resume, on_progress=on_progress)
    return Run(folder=folder, config=config, load_prepared=lambda: prepared)


def _refuse_undeclared(federation: Federation) -> None:
    if undeclared := federation.catalogue.undeclared:
        raise DataError(
            f"{federation.name} does not declare public: {', '.join(undeclared)}; declare it in"
            " dataset.toml (docs/data.md), or leave out --strict"
        )


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
    folder, config = _read(Path(path))

    @cache
    def load_prepared() -> PreparedRun:
        return prepare(config, load(config.data))

    return Run(folder=folder, config=config, load_prepared=load_prepared)


def open_released(path: str | Path) -> Model:
    """Return the model of a run folder, or of a file that `privrec export` wrote."""
    return open_model(path) if Path(path).is_file() else open_run(path).model()


def _read(path: Path) -> tuple[records.RunFolder, RunSettings]:
    """Return an existing run folder and its checked settings."""
    folder, values = records.read_run(path)
    try:
        return folder, settings_of(values)
    except SettingsError as error:
        raise RunFolderError(f"{folder.config_path}: {error}") from error


def _started(path: Path | None) -> tuple[records.RunFolder, RunSettings] | None:
    """Return the run to resume; None if it was killed before anything was in its folder."""
    if path is None:
        raise SettingsError("`resume` needs `out`, the folder of the run to go on with")
    return None if records.is_untouched(path) else _read(path)


def _check_same(folder: records.RunFolder, started: RunSettings, asked: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings: the result would be a mixture of two runs."""
    old = started.model_dump()
    for key, value in asked.items():
        if old[key] != value:
            raise RunFolderError(
                f"{folder.path} was started with {key} = {old[key]!r}, not {value!r}:"
                " resume with the same settings, or choose another --out"
            )
