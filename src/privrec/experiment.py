"""The one visible loop: build the algorithm, play rounds, write records, evaluate."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from privrec import records
from privrec.central import central_round
from privrec.config import RunConfig
from privrec.data.federation import Federation
from privrec.data.splits import Split, split_clients
from privrec.device import adapted_scorer, catalogue_of
from privrec.errors import DataError, RunFolderError, SettingsError
from privrec.evaluation.ranking import EvalReport, Scorer, evaluate
from privrec.evaluation.references import DENSE_LIMIT, ease, item_knn, own_items, popularity
from privrec.federated.cohort import fixed_size
from privrec.federated.lanes import cohort_runner, warm_up
from privrec.federated.local import local_sgd
from privrec.federated.pack import Instances, PackedClient, buckets, pack
from privrec.federated.round import (
    RoundReport,
    ServerState,
    federated,
    play_round,
    server_optimizer,
)
from privrec.models.dssm import dssm
from privrec.recipes import Recipe, recipe_named
from privrec.seeds import key
from privrec.types import IntArray, Params

CHECKPOINT_SECONDS = 5.0
OnProgress = Callable[[str, int, int], None]
"""(what is going on, how far, of how much)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A recipe bound to a data set: what is needed to train it and to rank with the result."""

    config: RunConfig
    federation: Federation
    split: Split
    init: Callable[[], ServerState]
    play: Callable[[ServerState], tuple[ServerState, RoundReport]]
    prepare: Callable[[Params], None]
    scorer: Callable[[Params], Scorer]


def build(config: RunConfig, federation: Federation) -> Experiment:
    """Return the experiment of these settings; wrong ones are found here, before any file."""
    recipe = recipe_named(config.recipe)
    split = split_clients(
        federation.n_clients,
        seed=config.seed,
        test_share=config.test_share,
        validation_share=config.validation_share,
    )
    if recipe.reference is not None:
        return _build_reference(config, federation, split, recipe)
    if config.cohort > len(split.train):
        raise SettingsError(
            f"`cohort` must be <= {len(split.train)}, the people who train; got {config.cohort}"
        )
    return _build_trained(config, federation, split, recipe)


def train(
    experiment: Experiment,
    folder: records.RunFolder,
    *,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> None:
    """Play the remaining rounds and leave `params.safetensors` in the run folder.

    A kill at any moment loses the rounds since the last checkpoint, which are played again, the
    same, on resume.
    """
    config = experiment.config
    state = experiment.init()
    if resume:
        state = restore(folder, state)
        records.keep_rounds(folder, state.round_index)
    if state.round_index < config.rounds:
        experiment.prepare(state.params)
    saved = time.monotonic()
    while state.round_index < config.rounds:
        started = time.monotonic()
        state, report = experiment.play(state)
        line = {"round": report.round_index, **_rest(report)}
        line["seconds"] = round(time.monotonic() - started, 4)
        if _is_due(state.round_index, config):
            line["validation"] = _validate(experiment, state.params)
        records.append_round(folder, line)
        if time.monotonic() - saved > CHECKPOINT_SECONDS or state.round_index == config.rounds:
            checkpoint(folder, state)
            saved = time.monotonic()
        if on_progress is not None:
            on_progress("rounds", state.round_index, config.rounds)
    arrays = {name: np.asarray(value) for name, value in state.params.items()}
    records.write_arrays(
        folder.params_path, arrays, {"recipe": config.recipe, "rounds": str(state.round_index)}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The final report: figures on the test people, and the reference rows of the same run."""

    config: RunConfig
    train: int
    validation: int
    report: EvalReport
    references: Mapping[str, EvalReport]
    statement: str

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
            **report.as_json(),
            "references": {name: figures.as_json() for name, figures in self.references.items()},
            "privacy": {
                "epsilon": None,
                "delta": None,
                "sampling": None,
                "rounds": config.rounds,
                "end_to_end": True,
                "statement": self.statement,
            },
        }


def evaluate_run(
    experiment: Experiment, params: Params, *, on_progress: OnProgress | None = None
) -> Evaluation:
    """Return the figures on the test people, with the references fitted and tested beside them."""
    config, federation, split = experiment.config, experiment.federation, experiment.split
    report = _evaluate_on(experiment, split.test, experiment.scorer(params), on_progress)
    if report.tested == 0:
        raise DataError(
            f"none of the {len(split.test)} test people has two likes, one of them to be tested"
        )
    everybody = np.concatenate([split.train, split.validation])
    references = {}
    for name, reference in _references(config, federation).items():
        arrays = reference.fit(federation, everybody)
        references[name] = _evaluate_on(experiment, split.test, reference.scorer(arrays), None)
    return Evaluation(
        config=config,
        train=len(split.train),
        validation=len(split.validation),
        report=report,
        references=references,
        statement=recipe_named(config.recipe).statement,
    )


def checkpoint(folder: records.RunFolder, state: ServerState) -> None:
    """Write the whole server state, replacing the one before in one step."""
    leaves = jax.tree.leaves((state.params, state.opt_state))
    arrays = {f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    arrays["round_index"] = np.asarray(state.round_index)
    records.write_arrays(folder.checkpoint_path, arrays, {})


def restore(folder: records.RunFolder, fresh: ServerState) -> ServerState:
    """Return the state of the last checkpoint, or `fresh` where there is none yet."""
    if not folder.checkpoint_path.is_file():
        return fresh
    arrays = records.read_arrays(folder.checkpoint_path)
    round_index = int(arrays.pop("round_index"))
    leaves, shape = jax.tree.flatten((fresh.params, fresh.opt_state))
    saved = [arrays[name] for name in sorted(arrays)]
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in saved]:
        raise RunFolderError(
            f"{folder.checkpoint_path} does not fit the settings: was the data changed since?"
        )
    params, opt_state = jax.tree.unflatten(shape, [jax.numpy.asarray(leaf) for leaf in saved])
    return ServerState(round_index=round_index, params=params, opt_state=opt_state)


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


def _build_trained(
    config: RunConfig, federation: Federation, split: Split, recipe: Recipe
) -> Experiment:
    recommender = dssm(
        federation.schema,
        federation.n_items,
        embedding_size=config.embedding_size,
        tower_size=config.tower_size,
        hidden=config.hidden,
        activation=config.activation,
        target=config.target,
        embedding_scale=config.embedding_scale,
    )
    algorithm = federated(
        recommender=recommender,
        local=local_sgd(
            recommender,
            learning_rate=config.local_lr,
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            max_steps=config.local_steps or None,
        ),
        sampler=fixed_size(config.cohort),
        server_optimizer=server_optimizer(config.server_optimizer, config.server_lr),
    )
    adapt = local_sgd(
        recommender,
        learning_rate=config.adapt_lr,
        epochs=config.adapt_epochs,
        batch_size=config.batch_size,
        max_steps=config.adapt_steps or None,
    )
    ratings = config.target == "rating"
    instances = Instances(
        negatives=config.negatives,
        batch_size=config.batch_size,
        dislike_target=config.dislike_target,
        ratings=ratings,
    )
    at_home = replace(instances, negatives=config.adapt_negatives)
    catalogue = catalogue_of(federation)

    def pack_people(people: IntArray, round_index: int) -> list[PackedClient]:
        return pack(
            federation.take(people),
            instances,
            n_items=federation.n_items,
            seed=config.seed,
            round_index=round_index,
        )

    if recipe.method == "central":
        play = central_round(
            recommender,
            sampler=fixed_size(config.cohort),
            optimizer=server_optimizer(config.server_optimizer, config.server_lr),
            batch_size=config.central_batch_size,
            catalogue=catalogue,
            population=split.train,
            pack=pack_people,
            seed=config.seed,
        )
        prepare = _nothing
    else:
        run_cohort = cohort_runner(algorithm.local, catalogue)

        def play(state: ServerState) -> tuple[ServerState, RoundReport]:
            return play_round(
                algorithm,
                state,
                population=split.train,
                pack=pack_people,
                run_cohort=run_cohort,
                seed=config.seed,
            )

        def prepare(params: Params) -> None:
            example = pack_people(split.train[:1], 0)[0]
            sizes = buckets(federation.largest, instances)
            warm_up(run_cohort, params, example=example, buckets=sizes, n_items=federation.n_items)

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        init=lambda: algorithm.init(key(config.seed, 0, "init")),
        play=play,
        prepare=prepare,
        scorer=adapted_scorer(recommender, adapt, federation, at_home, seed=config.seed),
    )


def _build_reference(
    config: RunConfig, federation: Federation, split: Split, recipe: Recipe
) -> Experiment:
    """Return an experiment of no rounds: what there is to fit is fitted at the start."""
    reference = recipe.reference
    if reference is None:
        raise SettingsError(f"{config.recipe} is no reference")
    made = reference(config)

    def init() -> ServerState:
        arrays = made.fit(federation, np.concatenate([split.train, split.validation]))
        params = {name: jax.numpy.asarray(array) for name, array in arrays.items()}
        return ServerState(round_index=config.rounds, params=params, opt_state=())

    def play(state: ServerState) -> tuple[ServerState, RoundReport]:
        raise SettingsError(f"{config.recipe} has no rounds to play")

    return Experiment(
        config=config,
        federation=federation,
        split=split,
        init=init,
        play=play,
        prepare=_nothing,
        scorer=lambda params: made.scorer({name: np.asarray(a) for name, a in params.items()}),
    )


def _references(config: RunConfig, federation: Federation) -> dict[str, Any]:
    references = {"popularity": popularity(), "own-items": own_items()}
    if federation.n_items <= DENSE_LIMIT:
        references |= {"item-knn": item_knn(), "ease": ease(config.ease_l2)}
    return references


def _evaluate_on(
    experiment: Experiment, people: IntArray, scorer: Scorer, on_progress: OnProgress | None
) -> EvalReport:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress("people tested", done, len(people))

    config = experiment.config
    return evaluate(
        experiment.federation,
        people,
        scorer,
        seed=config.seed,
        halving=config.halving,
        on_progress=advance,
    )


def _validate(experiment: Experiment, params: Params) -> Mapping[str, float]:
    scorer = experiment.scorer(params)
    report = _evaluate_on(experiment, experiment.split.validation, scorer, None)
    return {str(k): round(value, 5) for k, value in report.hits.items()}


def _is_due(round_index: int, config: RunConfig) -> bool:
    if not config.validate_every or not config.validation_share:
        return False
    return round_index % config.validate_every == 0 or round_index == config.rounds


def _rest(report: RoundReport) -> dict[str, Any]:
    return {name: value for name, value in asdict(report).items() if name != "round_index"}


def _nothing(params: Params) -> None:
    """Need no preparation."""
