"""The Python side of the command line: load, train, open a run, evaluate it, recommend."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrec import records
from privrec.build import Experiment, build
from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.device import Device, new_device
from privrec.errors import RunFolderError
from privrec.experiment import Evaluation, OnProgress, evaluate_run, load_params
from privrec.experiment import train as train_experiment
from privrec.recipes import configure
from privrec.report import render_report


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
        evaluation = evaluate_run(self.experiment, params, on_progress=on_progress)
        found = evaluation.as_json()
        text = json.dumps(found, indent=2) + "\n"
        records.write_whole(self.folder.evaluation_path, text.encode())
        page = render_report(found, records.read_rounds(self.folder), self.config.model_dump())
        records.write_whole(self.folder.report_path, page.encode())
        return evaluation

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

    Without `out` the run folder is a temporary one. With `resume` an interrupted run goes on from
    its last checkpoint, under the settings it was started with.
    """
    federation = load(data) if isinstance(data, str) else data
    name = data if isinstance(data, str) else data.name
    config = configure(recipe, name, settings)
    path = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="privrec-"))
    experiment = build(config, federation)
    if resume and (path / "config.toml").is_file():
        folder, started = records.open_run(path)
        _check_same(started, config, path)
    else:
        resume = False
        folder = records.create_run(path, config)
    train_experiment(experiment, folder, resume=resume, on_progress=on_progress)
    return Run(folder=folder, experiment=experiment)


def open_run(path: str | Path) -> Run:
    """Return the run in a folder."""
    folder, config = records.open_run(Path(path))
    return Run(folder=folder, experiment=build(config, load(config.data)))


def _check_same(started: RunConfig, asked: RunConfig, path: Path) -> None:
    """Refuse to go on with other settings: the result would be neither run."""
    old, new = started.model_dump(), asked.model_dump()
    for key, value in old.items():
        if new[key] != value:
            raise RunFolderError(
                f"{path} was started with {key} = {value!r}, not {new[key]!r}:"
                " resume with the same settings, or choose another --out"
            )
