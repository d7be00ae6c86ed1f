"""The training loop: play rounds, validate, write records and checkpoints; then evaluate."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.algorithms.recipe import TRAIN
from privrec.core.phase import RoundReport, ServerState, Stage
from privrec.core.round import Surroundings, cohort_draw, play_stage_round
from privrec.core.scorer import Scorer
from privrec.data.federation import Federation
from privrec.errors import DataError, RunFolderError
from privrec.evaluation.protocols import View
from privrec.evaluation.ranking import EvalReport, evaluate_view, with_few_items
from privrec.evaluation.references import (
    DENSE_LIMIT,
    Reference,
    ease,
    item_knn,
    own_items,
    popularity,
)
from privrec.privacy.statement import PrivacyReport
from privrec.runs import records
from privrec.runs.publisher import open_publisher
from privrec.settings import RunSettings
from privrec.simulate.executors import fastest
from privrec.types import IntArray, Params

CHECKPOINT_SECONDS = 5.0
"""The time between two checkpoints, for runs whose cohorts can be drawn again: about what a kill
can lose. Chosen by hand; not tuned."""
FEW_ITEMS = 20
"""The paper calls people with fewer items inactive."""
OnProgress = Callable[[str, int, int], None]
"""(name of the step, how much is done, how much there is)"""


def play_stages(
    prepared: PreparedRun,
    folder: records.RunFolder,
    *,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> None:
    """Play the remaining rounds that the budget allows; write `params.safetensors` at the end.

    A kill at any moment loses the rounds since the last checkpoint. Resume plays them again, and
    they publish the same again: from the same seed, or from the disk.
    """
    config, stages = prepared.config, prepared.stages()
    state, done = restore(folder, stages) if resume else (None, 0)
    if resume:
        records.keep_rounds(folder, done)
    stopped = False
    for stage in stages:
        if done >= stage.last and stage is not stages[-1]:
            continue  # Finished: the next stage starts from its result.
        if state is None or done <= stage.first:
            state = stage.start(None if state is None else state.params)
        if not stopped:
            state = _play_stage(prepared, stage, state, folder, on_progress)
        # If the budget ended inside a stage, later stages are not played.
        stopped = stopped or state.round_index < stage.last
    if state is not None:
        records.drop_published(folder, state.round_index)
        arrays = {name: np.asarray(value) for name, value in state.params.items()}
        about = {"recipe": config.recipe, "rounds": str(state.round_index)}
        records.write_arrays(folder.params_path, arrays, about)


def _play_stage(
    prepared: PreparedRun,
    stage: Stage,
    state: ServerState,
    folder: records.RunFolder,
    on_progress: OnProgress | None,
) -> ServerState:
    """Return the state after the rounds of a stage that the budget allows."""
    config, federation = prepared.config, prepared.federation
    publisher = open_publisher(folder, stage, config, federation.population, federation.fingerprint)
    last = publisher.last_round(state.round_index)
    budget = config.budget
    around = Surroundings(
        take=federation.take,
        run=fastest,
        draw=cohort_draw(config.seed, secret=budget.draws_in_secret),
        publish=publisher.publish,
    )
    what = "rounds" if stage.name == TRAIN else f"rounds for {stage.name}"
    if state.round_index < last:
        _report(on_progress, "compiling", 0, 1)
        if stage.device is not None:
            stage.device.prepare(state.params)
        _report(on_progress, "compiling", 1, 1)
    saved = time.monotonic()
    while state.round_index < last:
        started = time.monotonic()
        state, report = play_stage_round(stage, state, around)
        line: dict[str, Any] = {"round": report.round_index, "stage": stage.name}
        line |= {"seconds": round(time.monotonic() - started, 4), **_rest(report)}
        played = state.round_index - stage.first
        due = config.validates_after(played, last - stage.first)
        if budget.shows_raw_figures and stage.ranks and due:
            line["validation"] = _validate(prepared, state.params)
        records.append_round(folder, line, figures=budget.shows_raw_figures)
        # A secretly drawn cohort cannot be drawn again: write a checkpoint after every round.
        due = budget.draws_in_secret or time.monotonic() - saved > CHECKPOINT_SECONDS
        if due or state.round_index == last:
            checkpoint(folder, state)
            records.drop_published(folder, state.round_index)
            saved = time.monotonic()
        _report(on_progress, what, played, last - stage.first)
    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The final report: figures on the test people, and the reference rows of the same run.

    `few` is for test people with few items on their device, `few_unadapted` for the same people
    without adaptation.
    """

    config: RunSettings
    protocol: str
    candidates: str
    train: int
    validation: int
    report: EvalReport
    few: EvalReport
    few_unadapted: EvalReport | None
    references: Mapping[str, EvalReport]
    privacy: PrivacyReport

    @property
    def hits(self) -> dict[int, float]:
        """Hits@k by k."""
        return self.report.hits

    def as_json(self) -> dict[str, Any]:
        """Return the content of `evaluation.json`."""
        config, report = self.config, self.report
        return {
            "recipe": config.recipe,
            "data": config.data,
            "seed": config.seed,
            "users": {
                "train": self.train,
                "validation": self.validation,
                "test": report.tested,
                "skipped": report.skipped,
            },
            "protocol": self.protocol,
            "candidates": self.candidates,
            **report.as_json(),
            "few_items": {
                "fewer_than": FEW_ITEMS,
                "people": self.few.tested,
                "hits": self.few.as_json()["hits"],
                "without_adaptation": self.few_unadapted and self.few_unadapted.as_json()["hits"],
            },
            "references": {name: figures.as_json() for name, figures in self.references.items()},
            "privacy": self.privacy.as_json(),
        }


def evaluate_run(
    prepared: PreparedRun,
    params: Params,
    privacy: PrivacyReport,
    *,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the figures on the test people, for the run and for the reference recommenders."""
    config, federation, split = prepared.config, prepared.federation, prepared.split
    protocol = prepared.protocol
    view = protocol.testing(prepared.whole)
    report = _evaluate_on(prepared, view, split.test, prepared.rankers.adapted(params), on_progress)
    if report.tested == 0:
        raise DataError(
            f"none of the {len(split.test)} test people has two likes, one of them to be tested"
        )
    few = with_few_items(view, split.test, fewer_than=FEW_ITEMS)
    unadapted = prepared.rankers.unadapted
    references = {}
    for name, reference in _references(federation).items():
        arrays = reference.fit(federation, split.fitted)
        references[name] = _evaluate_on(prepared, view, split.test, reference.scorer(arrays), None)
    return Evaluation(
        config=config,
        protocol=protocol.name,
        candidates=protocol.candidates,
        train=len(split.train),
        validation=len(split.validation),
        report=report,
        few=_evaluate_on(prepared, view, few, prepared.rankers.adapted(params), None),
        few_unadapted=unadapted and _evaluate_on(prepared, view, few, unadapted(params), None),
        references=references,
        privacy=privacy,
    )


def checkpoint(folder: records.RunFolder, state: ServerState) -> None:
    """Write the whole server state; it replaces the checkpoint before atomically."""
    leaves = jax.tree.leaves((state.params, state.opt_state))
    arrays = {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays["clip_norm"] = np.asarray(state.clip_norm)
    arrays["round_index"] = np.asarray(state.round_index)
    records.write_arrays(folder.checkpoint_path, arrays, {})


def restore(folder: records.RunFolder, stages: Sequence[Stage]) -> tuple[ServerState | None, int]:
    """Return the state of the last checkpoint and its number of rounds, or (None, 0).

    The state belongs to the stage that played the last round.
    """
    if not folder.checkpoint_path.is_file():
        return None, 0
    arrays = records.read_arrays(folder.checkpoint_path)
    if not {"round_index", "clip_norm"} <= arrays.keys():
        raise RunFolderError(f"{folder.checkpoint_path} is not a checkpoint of privrec")
    round_index, clip_norm = int(arrays.pop("round_index")), float(arrays.pop("clip_norm"))
    fresh = None
    for stage in stages:
        if fresh is None or stage.first < round_index:
            fresh = stage.start(None if fresh is None else fresh.params)
    if fresh is None or not fresh.params:
        return None, 0  # A fit of a single round is simply repeated.
    leaves, shape = jax.tree.flatten((fresh.params, fresh.opt_state))
    saved = [arrays[name] for name in sorted(arrays)]
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in saved]:
        raise RunFolderError(
            f"{folder.checkpoint_path} does not fit the settings: was the data changed since?"
        )
    params, opt_state = jax.tree.unflatten(shape, [jax.numpy.asarray(leaf) for leaf in saved])
    state = ServerState(
        round_index=round_index, params=params, opt_state=opt_state, clip_norm=clip_norm
    )
    return state, round_index


def load_params(folder: records.RunFolder) -> dict[str, jax.Array]:
    """Return the parameters of a finished run."""
    if not folder.params_path.is_file():
        raise RunFolderError(
            f"{folder.path} is not finished: it has no params.safetensors; go on with --resume"
        )
    return {
        name: jax.numpy.asarray(array)
        for name, array in records.read_arrays(folder.params_path).items()
    }


def _references(federation: Federation) -> dict[str, Reference]:
    references = {"popularity": popularity(), "own-items": own_items()}
    if federation.n_items <= DENSE_LIMIT:
        references |= {"item-knn": item_knn(), "ease": ease()}
    return references


def _evaluate_on(
    prepared: PreparedRun,
    view: View,
    people: IntArray,
    scorer: Scorer,
    on_progress: OnProgress | None,
) -> EvalReport:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        _report(on_progress, "people tested", done, len(people))

    protocol = prepared.protocol
    return evaluate_view(
        view,
        people,
        scorer,
        candidates=protocol.candidates,
        with_recall=protocol.name != "halves",
        on_progress=advance,
    )


def _validate(prepared: PreparedRun, params: Params) -> Mapping[str, float | None]:
    scorer = prepared.rankers.adapted(params)
    view = prepared.protocol.validating(prepared.whole)
    report = _evaluate_on(prepared, view, prepared.split.validation, scorer, None)
    hits: dict[str, float | None] = report.as_json()["hits"]
    return {k: value if value is None else round(value, 5) for k, value in hits.items()}


def _report(on_progress: OnProgress | None, what: str, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(what, done, total)


def _rest(report: RoundReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if name != "round_index"}
