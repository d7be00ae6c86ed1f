"""The Python side of the command line: load, train, open a run, evaluate it, recommend."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrec import records
from privrec.book import ledger_of, volunteers_of
from privrec.build import Experiment, build
from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.device import Device, new_device
from privrec.errors import RunFolderError, SettingsError
from privrec.experiment import Evaluation, OnProgress, evaluate_run, load_params
from privrec.experiment import train as train_experiment
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import PrivacyReport, privacy_report
from privrec.recipes import configure, recipe_named
from privrec.report import render_report
from privrec.stages import TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder, opened."""

    folder: records.RunFolder
    experiment: Experiment

    @property
    def config(self) -> RunConfig:
        """Everything that shaped the run."""
        return self.experiment.config

    def evaluate(self, *, on_progress: OnProgress | None = None) -> Evaluation:
        """Return the figures on the test people; writes `evaluation.json` and `report.html`."""
        params = load_params(self.folder)
        evaluation = evaluate_run(self.experiment, params, self.privacy(), on_progress=on_progress)
        found = evaluation.as_json()
        text = json.dumps(found, indent=2) + "\n"
        records.write_whole(self.folder.evaluation_path, text.encode())
        page = render_report(found, records.read_rounds(self.folder), self.config.model_dump())
        records.write_whole(self.folder.report_path, page.encode())
        return evaluation

    @property
    def rounds(self) -> int:
        """How many rounds were played: fewer than asked for where the budget ended first."""
        return len(records.read_rounds(self.folder))

    @property
    def ledger(self) -> PrivacyLedger:
        """Every release of the run, as its folder has them."""
        return ledger_of(self.folder)

    def privacy(self) -> PrivacyReport:
        """Return what the run promises, by its ledger."""
        return privacy_report(
            self.ledger,
            delta=self.config.delta,
            noise=self.config.noise,
            without=recipe_named(self.config.recipe).without_noise,
            volunteers=volunteers_of(self.folder),
            second=ledger_of(self.folder, {TRAIN}) if self.config.stage1 == "paper" else None,
        )

    def device(
        self,
        *,
        likes: Sequence[str] = (),
        dislikes: Sequence[str] = (),
        features: Mapping[str, object] | None = None,
    ) -> Device:
        """Return a newcomer's device, with the trained model and her own data on it."""
        return new_device(
            self.experiment.federation,
            self.experiment.scorer(load_params(self.folder)),
            likes=likes,
            dislikes=dislikes,
            features=features,
        )


def train(
    recipe: str,
    data: str | Federation,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Run:
    """Return a finished run of a recipe; the same as `privrec train`.

    Without `out` the run folder is a temporary one. With `resume` the interrupted run in `out` goes
    on from its last checkpoint, under the settings it was started with; none need be repeated, and
    other ones are refused.
    """
    name = data if isinstance(data, str) else data.name
    path = None if out is None else Path(out)
    started = _started(path) if resume else None
    if started is None:
        config = configure(recipe, name, settings)
    else:
        before = started[1].model_dump(exclude_none=True)
        config = configure(recipe, name, {**before, **settings})
        _check_same(*started, config)
    experiment = build(config, load(data) if isinstance(data, str) else data)
    experiment.stages()  # Wrong settings are found before any file is written.
    if started is None:
        path = path or Path(tempfile.mkdtemp(prefix="privrec-"))
        folder = records.create_run(path, config)
    else:
        folder = started[0]
        records.clear_leftovers(folder)
    if not folder.params_path.is_file():
        resume = started is not None
        train_experiment(experiment, folder, resume=resume, on_progress=on_progress)
    return Run(folder=folder, experiment=experiment)


def open_run(path: str | Path) -> Run:
    """Return the run in a folder."""
    folder, config = records.open_run(Path(path))
    return Run(folder=folder, experiment=build(config, load(config.data)))


def _started(path: Path | None) -> tuple[records.RunFolder, RunConfig] | None:
    """Return the run to go on with, or None where a kill came before there was anything in it."""
    if path is None:
        raise SettingsError("`resume` needs `out`, the folder of the run to go on with")
    return None if records.is_untouched(path) else records.open_run(path)


def _check_same(folder: records.RunFolder, started: RunConfig, asked: RunConfig) -> None:
    """Refuse to go on with other settings: the result would be neither run."""
    old, new = started.model_dump(), asked.model_dump()
    for key, value in old.items():
        if new[key] != value:
            raise RunFolderError(
                f"{folder.path} was started with {key} = {value!r}, not {new[key]!r}:"
                " resume with the same settings, or choose another --out"
            )
