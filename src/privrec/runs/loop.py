"""Training: prepares a run, plays its rounds, and writes its parameters to a run folder.

Without noise, a run can keep the state with the best Hits@20 for the validation people. With noise,
it cannot, because using their raw data would cost privacy budget too. Then a warning before the
training says if there are too few people to learn anything.
"""

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare, recipe_named, settings_of
from privrec.core.phase import Cohort, Phase, RoundReport, ServerState, Stage
from privrec.core.round import (
    Network,
    Surroundings,
    cohort_draw,
    fastest,
    none_begun,
    play_stage_round,
    tell_nobody,
)
from privrec.data.catalogue import to_json
from privrec.data.federation import Federation
from privrec.data.sources import load_begun, named
from privrec.data.text import ITEM_FEATURES
from privrec.errors import DataError, PrivacyWarning, RunFolderError, SettingsError
from privrec.privacy.calibrate import Sums, people_needed, too_few_words
from privrec.runs import folder as records
from privrec.runs.bar import progress_bar
from privrec.runs.documents import Evaluation, RoundFigures
from privrec.runs.evaluate import validate
from privrec.runs.folder import Arrays, discard, folder_path, temporary_run
from privrec.runs.journal import open_journal, write_params
from privrec.runs.progress import Progress, progress_of
from privrec.runs.run import Run
from privrec.settings import RunSettings
from privrec.simulate.cost import check_memory
from privrec.types import OnProgress, Params

K = "20"
"""The k of Hits@k for comparing states on the validation people."""
_HITS, _ROUND, _WORSE, _PARAM = "best hits", "best round", "best worse", "best param "


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best state so far: the parameters after `round_index` rounds, and their Hits@20 (`hits`).

    `worse` is the number of validations since then; all were worse. A later state with the same
    Hits@20 replaces an earlier state.
    """

    round_index: int
    hits: float
    params: Params
    worse: int = 0


def after_look(best: Best | None, state: ServerState, hits: float) -> Best:
    """Return the best state so far, after a validation of `state` with Hits@20 = `hits`."""
    if best is not None and hits < best.hits:
        return replace(best, worse=best.worse + 1)
    return Best(round_index=state.round_index, hits=hits, params=state.params)


def to_arrays(best: Best | None) -> Arrays:
    """Return the best state as arrays of a checkpoint; {} if there is none."""
    if best is None:
        return {}
    return {
        _HITS: np.asarray(best.hits),
        _ROUND: np.asarray(best.round_index),
        _WORSE: np.asarray(best.worse),
        **{f"{_PARAM}{name}": np.asarray(array) for name, array in best.params.items()},
    }


def from_arrays(arrays: Arrays) -> Best | None:
    """Return the best state in the arrays of a checkpoint; None if there is none."""
    if _HITS not in arrays:
        return None
    return Best(
        hits=float(arrays[_HITS]),
        round_index=int(arrays[_ROUND]),
        worse=int(arrays[_WORSE]),
        params={
            name.removeprefix(_PARAM): jnp.asarray(array)
            for name, array in arrays.items()
            if name.startswith(_PARAM)
        },
    )


def too_few_to_learn(prepared: Plan) -> str:
    """Return a warning if there are too few people for the run's noise, else ""."""
    if prepared.task.settings.budget.mechanism == "none":
        return ""
    return too_few_words(prepared.task.split.public_train, people_needed(_planned(prepared)))


def _planned(prepared: Plan) -> list[Sums]:
    """Return the sums that the stages would publish, with the number of values in each sum."""
    sums, params = [], None
    for stage in prepared.stages():
        state = stage.start(params)
        params = state.params
        numbers = 0
        if isinstance(stage, Phase) and stage.release.is_private:
            nobody = Cohort(stage.population[:0], prepared.task.federation.take)
            total = fastest(stage, stage.tell(state), nobody, stage.first, state.clip_norm)
            numbers = sum(int(np.size(leaf)) for leaf in total.update.values())
        sums.append(Sums(release=stage.release, count=stage.rounds, numbers=numbers))
    return sums


CHECKPOINT_SECONDS = 5.0
"""The seconds between two checkpoints if cohorts can be drawn again. A kill loses about this much
work. Chosen by hand."""


def train(
    recipe: str,
    data: object,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    strict: bool = False,
    progress: bool = True,
    on_progress: OnProgress | None = None,
    observe: Callable[[Plan], Plan] | None = None,
    **settings: Any,
) -> Run:
    """Return a finished run of a recipe; the same as `privrec train`.

    `data` is an input of `load` or an object that `load` returned. Without `out` the run folder is
    temporary: it is removed when nothing uses the run any more, unless `Run.save` copies it. In a
    notebook and in a terminal a bar shows the progress, unless `progress` is false. `on_progress`
    replaces the bar.

    With `resume` the interrupted run in `out` continues from its last checkpoint, on the same data
    and with its original settings. Settings need not be given again; different settings are
    refused. With `strict` a run with noise is refused if a part of its catalogue is not declared
    public. `observe` is for audits: it returns the given plan with stages that also report to the
    audit what they publish.
    """
    name, read = named(data)
    path = folder_path("out", out)
    started = _started(path) if resume else None
    config = _settings_of(started, recipe, name, settings)
    prepared = prepare(config, read() if started is None else _read_begun(data, started[0]))
    prepared = prepared if observe is None else observe(prepared)
    chosen = ""
    if started is None and observe is None:
        records.check_free(path)  # Checked now, because choosing settings takes time.
        prepared, chosen = with_choice(prepared, settings, on_progress, progress)
    config, federation = prepared.task.settings, prepared.task.federation
    _refuse_undeclared(federation, strict=strict and config.budget.mechanism != "none")
    # Find wrong settings and too little memory before any file is written.
    check_memory(prepared.stages())
    # An audit (`observe`) needs no warning, because it does not measure quality.
    if started is None and observe is None and (few := too_few_to_learn(prepared)):
        warnings.warn(few, PrivacyWarning, stacklevel=2)
    if started is None:
        folder = _new_folder(prepared, path, chosen)
    else:
        folder = started[0]
        records.check_data(folder, federation.fingerprint)
    try:
        with records.locked(folder), progress_bar(on_progress, progress) as tell:
            if not folder.params_path.is_file():
                records.clear_leftovers(folder)
                play_stages(prepared, folder, resume=started is not None, on_progress=tell)
    except BaseException:
        discard(folder)
        raise
    return Run(
        folder=folder, config=config, recipe=recipe_named(recipe), load_prepared=lambda: prepared
    )


def _new_folder(prepared: Plan, path: Path | None, chosen: str) -> records.RunFolder:
    """Return the folder of a new run; `chosen` is a line with the chosen settings."""
    config, federation = prepared.task.settings, prepared.task.federation
    about = (config, to_json(federation.catalogue), federation.fingerprint)
    folder = temporary_run(*about) if path is None else records.create_run(path, *about)
    if chosen:
        records.write_whole(folder.choice_path, f"{chosen}\n".encode())
    return folder


def with_choice(
    prepared: Plan, given: Collection[str], on_progress: OnProgress | None, progress: bool
) -> tuple[Plan, str]:
    """Return the plan with the settings that its recipe chooses, and a line that names them.

    Settings that the user has `given` are not changed. With noise, no setting is chosen.
    """
    choice = recipe_named(prepared.task.settings.recipe).choice
    if choice is None:
        return prepared, ""
    prepared = with_settings(prepared, choice.usual(prepared.task, given))
    check_memory(prepared.stages())
    with progress_bar(on_progress, progress) as tell:
        chosen = choice.find(prepared.task, given, tell or tell_nobody)
    if chosen is None:
        return prepared, ""
    return with_settings(prepared, chosen.values), chosen.line


def with_settings(prepared: Plan, values: Mapping[str, object]) -> Plan:
    """Return the plan with some settings changed."""
    if not values:
        return prepared
    task = prepared.task
    return prepare(settings_of({**task.settings.model_dump(), **values}), task.whole)


def train_and_evaluate(
    recipe: str, data: str, place: Path, *, on_progress: OnProgress | None = None, **settings: Any
) -> Evaluation:
    """Return the evaluation of the run in `place`, which is trained and tested first if needed."""
    begun = place.exists() and not records.is_untouched(place)
    if begun:
        # A resumed run keeps its original settings, so they must equal the requested ones.
        choice = recipe_named(recipe).choice
        free = set[str]() if choice is None else choice.keys - settings.keys()
        left_out = {"protocol", "candidates"} | free
        asked = configure(recipe, data, settings).model_dump(exclude=left_out)
        check_same(*records.read_settings(place, settings_of), asked)
    shown: Any = {"progress": False, "on_progress": on_progress}
    run = train(recipe, data, out=place, resume=begun, **shown, **settings)
    if not run.folder.evaluation_path.is_file():
        run.evaluate(**shown)
    return records.read_evaluation(place)


def _refuse_undeclared(federation: Federation, *, strict: bool) -> None:
    undeclared = federation.catalogue.undeclared
    if not strict or not undeclared:
        return
    features = any(part.startswith(ITEM_FEATURES) for part in undeclared)
    how = " (for features of items: item_features = true under [public])" if features else ""
    raise DataError(
        f"{federation.name} does not declare public: {', '.join(undeclared)}; declare it in"
        f" dataset.toml{how}, see docs/data.md, or leave out --strict"
    )


def play_stages(
    prepared: Plan,
    folder: records.RunFolder,
    *,
    resume: bool = False,
    on_progress: OnProgress | None = None,
    network: Network | None = None,
) -> None:
    """Play the remaining rounds that the budget allows; then write `params.safetensors`.

    If the process is killed, a resumed run plays the rounds since the last checkpoint again. They
    publish the same sums, computed from the same seed or read from disk. Without a `network` the
    cohorts are simulated on this machine.
    """
    config, stages = prepared.task.settings, prepared.stages()
    figures = config.budget.shows_raw_figures
    with progress_of(folder, stages, on_progress, figures=figures) as progress:
        state, best = restore(folder, stages) if resume else (None, None)
        done = played = 0 if state is None else state.round_index
        if resume:
            records.keep_rounds(folder, done)
        stopped = False
        for stage in stages:
            if done >= stage.last and stage is not stages[-1]:
                continue  # This stage is finished; the next stage starts from its result.
            if state is None or done <= stage.first:
                state = stage.start(None if state is None else state.params)
                if state.round_index != stage.first:
                    raise ValueError(f"{stage.name} must start at round {stage.first}; got {state}")
            if not stopped:
                state, best = _play_stage(prepared, stage, (state, best), folder, progress, network)
                played = state.round_index
            # If the budget or the training ended within a stage, skip the later stages.
            stopped = stopped or played < stage.last
        if state is not None:
            records.drop_published(folder, played)
            kept = state.params if best is None else best.params
            write_params(folder, kept, recipe=config.recipe, rounds=played)


Reached = tuple[ServerState, Best | None]
"""The state after the last round, and the best state so far if the recipe keeps one."""


def _play_stage(
    prepared: Plan,
    stage: Stage,
    reached: Reached,
    folder: records.RunFolder,
    progress: Progress,
    network: Network | None,
) -> Reached:
    """Return the state after the rounds that the budget allows, and the best state.

    Ctrl-C leaves a checkpoint of the last complete round on disk.
    """
    state, best = reached
    config = prepared.task.settings
    around, last = _surroundings(prepared, stage, state, folder, progress, network)
    progress.begin_stage(stage, played=state.round_index, last=last)
    if state.round_index < last and network is None:
        _compile(stage, state, progress)
    saved, complete = time.monotonic(), None
    try:
        while state.round_index < last and not _is_over(config, best):
            progress.begin_round()
            started = time.monotonic()
            state, report = play_stage_round(stage, state, around)
            line = _figures_of(report, stage.name, seconds=round(time.monotonic() - started, 4))
            played = state.round_index - stage.first
            looks = config.validates_after(played, last - stage.first)
            if config.budget.shows_raw_figures and stage.ranks and looks:
                progress.step("validation", 0, 1)
                figures, best = _validation_figures(prepared, state, best, last)
                line = line.model_copy(update=figures)
            records.append_round(folder, line, figures=config.budget.shows_raw_figures)
            complete = state, best
            # Write a checkpoint after every round if its cohort cannot be drawn again, or if it is
            # slow because of the network.
            due = config.budget.draws_in_secret or network is not None
            due = due or time.monotonic() - saved > CHECKPOINT_SECONDS
            if due or state.round_index == last or _is_over(config, best):
                checkpoint(folder, state, best)
                records.drop_published(folder, state.round_index)
                saved = time.monotonic()
            progress.end_round(played)
    except KeyboardInterrupt:
        if complete is not None:
            checkpoint(folder, *complete)
        raise
    return state, best


def _surroundings(
    prepared: Plan,
    stage: Stage,
    state: ServerState,
    folder: records.RunFolder,
    progress: Progress,
    network: Network | None,
) -> tuple[Surroundings, int]:
    """Return the functions that a stage's rounds need, and the last round within the budget."""
    config, federation = prepared.task.settings, prepared.task.federation
    journal = open_journal(
        folder,
        stage,
        config,
        population=federation.population,
        fingerprint=federation.fingerprint,
        about={} if network is None else network.about,
    )
    around = Surroundings(
        take=federation.take,
        run=fastest if network is None else network.run,
        draw=cohort_draw(config.seed, secret=config.budget.draws_in_secret),
        journal=journal,
        on_step=progress.step,
        begun=none_begun if network is None else network.begun,
    )
    return around, journal.last_round(state.round_index)


def _compile(stage: Stage, state: ServerState, progress: Progress) -> None:
    progress.compiling(0)
    if stage.device is not None:
        stage.device.prepare(state.params)
    progress.compiling(1)


def _validation_figures(
    prepared: Plan, state: ServerState, best: Best | None, last: int
) -> tuple[dict[str, object], Best | None]:
    """Return the validation figures for the line of a round, and the best state so far."""
    config, figures = prepared.task.settings, validate(prepared, state.params)
    hits = figures["validation"][K]
    if not config.worse_looks or hits is None:
        return figures, best
    best = after_look(best, state, hits)
    stopped = _is_over(config, best) and state.round_index < last
    return {**figures, "best": best.worse == 0, "stopped": stopped}, best


def _is_over(config: RunSettings, best: Best | None) -> bool:
    """Return whether training stops, because `worse_looks` validations were worse than the best."""
    return best is not None and 0 < config.worse_looks <= best.worse


def checkpoint(folder: records.RunFolder, state: ServerState, best: Best | None = None) -> None:
    """Replace the checkpoint by the server's state and the best state, atomically."""
    leaves = jax.tree.leaves((state.params, state.opt_state))
    arrays = {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays["clip_norm"] = np.asarray(state.clip_norm)
    arrays["round_index"] = np.asarray(state.round_index)
    records.write_arrays(folder.checkpoint_path, {**arrays, **to_arrays(best)}, {})


def restore(
    folder: records.RunFolder, stages: Sequence[Stage]
) -> tuple[ServerState | None, Best | None]:
    """Return the state of the last checkpoint and the best state in it; None for a missing state.

    The state belongs to the stage that played the last round.
    """
    if not folder.checkpoint_path.is_file():
        return None, None
    arrays = records.read_arrays(folder.checkpoint_path)
    try:
        round_index, clip_norm = int(arrays.pop("round_index")), float(arrays.pop("clip_norm"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        path = folder.checkpoint_path
        raise RunFolderError(f"{path} is not a checkpoint of privrec") from error
    fresh = None
    for stage in stages:
        if fresh is None or stage.first < round_index:
            fresh = stage.start(None if fresh is None else fresh.params)
    if fresh is None or not fresh.params:
        return None, None  # A fit in a single round has no parameters yet and is repeated.
    leaves, shape = jax.tree.flatten((fresh.params, fresh.opt_state))
    saved = [arrays[name] for name in sorted(arrays) if name.isdecimal()]
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in saved]:
        raise RunFolderError(
            f"{folder.checkpoint_path} does not fit the settings: was the data changed since?"
        )
    params, opt_state = jax.tree.unflatten(shape, [jax.numpy.asarray(leaf) for leaf in saved])
    state = ServerState(
        round_index=round_index, params=params, opt_state=opt_state, clip_norm=clip_norm
    )
    return state, from_arrays(arrays)


def _figures_of(report: RoundReport, stage: str, *, seconds: float) -> RoundFigures:
    """Return a round's figures; a loss that is not finite becomes None."""
    loss = report.loss
    return RoundFigures(
        round=report.round_index,
        stage=stage,
        seconds=seconds,
        clients=report.clients,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        clipped=report.clipped,
        dropped=report.dropped,
        skipped=report.skipped,
    )


def _started(path: Path | None) -> tuple[records.RunFolder, RunSettings] | None:
    """Return the run to resume; None if it was killed before its settings were written."""
    if path is None:
        raise SettingsError("`resume` needs `out`, the folder of the run to go on with")
    return None if records.is_untouched(path) else records.read_settings(path, settings_of)


def _read_begun(data: object, folder: records.RunFolder) -> Federation:
    return load_begun(data, lambda: records.read_catalogue(folder))


def _settings_of(
    started: tuple[records.RunFolder, RunSettings] | None,
    recipe: str,
    name: str,
    settings: Mapping[str, object],
) -> Any:
    """Return the settings of a new run, or of the run to resume; raise if they differ."""
    if started is None:
        return configure(recipe, name, settings)
    check_same(started[0], started[1], {"recipe": recipe, "data": name})
    before = started[1].model_dump(exclude_none=True)
    config = configure(recipe, name, {**before, **settings})
    check_same(*started, config.model_dump())
    return config


def check_same(
    folder: records.RunFolder, started: RunSettings, asked: Mapping[str, object]
) -> None:
    """Raise if `asked` differs from the run's settings: the result would mix two runs."""
    old = started.model_dump()
    for key, value in asked.items():
        if old[key] != value:
            raise RunFolderError(
                f"{folder.path} was started with {key} = {old[key]!r}, not {value!r}:"
                " resume with the same settings, or choose another --out"
            )
