"""Membership inference: can a model tell whether a whole person's data was in its training?

The attack trains its own models, because it must know who took part. docs/attacks.md says what
each kind is. A model is a run folder; what it says about people lies in its `simulation/`. A model
that is there is not trained again, and one that was interrupted goes on. Some kinds read what is
published or sent instead: they need no models.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipes import configure, plan_on_device, prepare, settings_of
from privrec.attacks.attackers import results_of
from privrec.attacks.games import (
    EVERYBODY_TRAINS,
    MODEL_KINDS,
    MOST_PEOPLE,
    OURS,
    Games,
    Options,
    games_of,
)
from privrec.attacks.scores import sums_attack
from privrec.attacks.server import read_off
from privrec.attacks.views import Views, read_views, views_of, write_views
from privrec.attacks.workers import cores, side_by_side
from privrec.data.federation import Federation, part_of
from privrec.data.sources import load
from privrec.errors import PrivacyWarning, RunFolderError, SettingsError
from privrec.privacy.paper import PRINTED_ATTACKS
from privrec.runs import folder as records
from privrec.runs.documents import Attack, Attacks
from privrec.runs.journal import load_params
from privrec.runs.loop import check_same, train
from privrec.seeds import rng
from privrec.settings import Budget
from privrec.types import IntArray, OnProgress


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A model to be trained: by whom, and about whom it will be asked.

    `settings` has its seed. `asking_seed` fixes what devices draw when they adapt. It is the same
    for all models of an attack, so that it cannot tell them apart.
    """

    place: Path
    recipe: str
    settings: Mapping[str, Any]
    members: IntArray
    asked: IntArray
    asking_seed: int

    @property
    def views_path(self) -> Path:
        """Where its views are."""
        return self.place / records.SIMULATION / "views.npz"

    @property
    def was_asked(self) -> bool:
        """Whether its views are there, and about the same people."""
        try:
            return bool(read_views(self.views_path, self.asked))
        except RunFolderError:
            return False

    @property
    def begun(self) -> bool:
        """Whether its folder has more than the leftovers of a kill."""
        return self.place.exists() and not records.is_untouched(self.place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """An attack that can be played: its models can be trained, and their folders are theirs.

    `data` is the name of the federation, if it has one.
    """

    recipe: str
    federation: Federation
    data: str | None
    settings: Mapping[str, Any]
    budget: Budget
    games: Games
    models: Mapping[str, Model]


def attack(
    recipe: str,
    data: str | Federation,
    *,
    out: str | Path,
    kinds: Sequence[str] = MODEL_KINDS,
    repetitions: int = 5,
    shadows: int = 16,
    people: int = MOST_PEOPLE,
    seed: int = 0,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Attack:
    """Return how well each kind of attack tells who trained; the same as `privrec attack`.

    `Options` says what is asked. Models lie in `out`; what is there is not trained again.
    `workers` models are trained at a time, by default one for each core. Each is a process of its
    own, so a script that calls this needs `if __name__ == "__main__":`. A `Federation` is not
    handed to other processes: its models are trained one after another. Noise is seeded: it
    protects nobody.
    """
    options = Options(
        kinds=kinds, repetitions=repetitions, shadows=shadows, people=people, seed=seed
    )
    prepared = prepare_attack(
        recipe,
        load(data) if isinstance(data, str) else data,
        data=data if isinstance(data, str) else None,
        out=Path(out),
        options=options,
        settings=settings,
    )
    return play_attack(prepared, workers=workers, on_progress=on_progress)


def prepare_attack(
    recipe: str,
    federation: Federation,
    *,
    data: str | None,
    out: Path,
    options: Options,
    settings: Mapping[str, Any],
) -> Prepared:
    """Return an attack to be played; whatever is wrong is found before anything is trained."""
    for key in settings:
        if key in OURS:
            raise SettingsError(f"`{key}` cannot be set: an attack chooses it for each model")
    budget: Budget = configure(recipe, federation.name, settings).budget
    games = games_of(federation.n_clients, options)
    noise = {} if budget.mechanism == "none" else {"noise": "seeded"}
    models = models_of(games, recipe, {**settings, **noise}, out=out)
    if models:
        check_models(list(models.values()), federation)
    return Prepared(
        recipe=recipe,
        federation=federation,
        data=data,
        settings=settings,
        budget=budget,
        games=games,
        models=models,
    )


def play_attack(
    prepared: Prepared, *, workers: int | None = None, on_progress: OnProgress | None = None
) -> Attack:
    """Return what the attacks reached; trains the models that are not there yet."""
    if workers is not None and workers < 1:
        raise SettingsError(f"`workers` must be >= 1; got {workers}")
    recipe, federation, budget = prepared.recipe, prepared.federation, prepared.budget
    views = views_of_all(
        list(prepared.models.values()),
        federation,
        data=prepared.data,
        workers=workers or cores(),
        on_progress=on_progress,
    )
    named = dict(zip(prepared.models, views, strict=True))
    figures: dict[str, Any] = results_of(prepared.games, named, federation)
    if "paper" in figures:
        of_recipe = PRINTED_ATTACKS.get(federation.name, {}).get(recipe, {})
        figures["paper"]["printed"] = of_recipe.get(budget.epsilon)
    return Attack(
        recipe=recipe,
        data=federation.name,
        epsilon=budget.epsilon,
        delta=None if budget.mechanism == "none" else budget.delta,
        repetitions=prepared.games.options.repetitions,
        seed=prepared.games.options.seed,
        attacks=Attacks.model_validate(figures | read_along(prepared, on_progress), strict=False),
    )


def read_along(prepared: Prepared, on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Return the figures of the kinds that read published sums, or single contributions.

    Sums without noise hide nothing: a recipe without noise has no figures of them.
    """
    recipe, federation, options = prepared.recipe, prepared.federation, prepared.games.options
    figures: dict[str, Any] = {}
    for kind, trainings in (("sums", 1), ("twice", 2)):
        if kind in options.kinds and prepared.budget.mechanism != "none":
            figures[kind] = sums_attack(
                recipe,
                federation,
                people=options.people,
                seed=options.seed,
                trainings=trainings,
                settings=prepared.settings,
                on_progress=on_progress,
            )
    if "server" in options.kinds:
        config = configure(recipe, federation.name, prepared.settings)
        if readings := read_off(prepare(config, federation), seed=options.seed):
            figures["server"] = readings
    return figures


def models_of(
    games: Games, recipe: str, settings: Mapping[str, Any], *, out: Path
) -> dict[str, Model]:
    """Return the models of all games by name; each has a seed of its own."""
    trained: dict[str, tuple[IntArray, IntArray]] = {}
    for k, parts in enumerate(games.parts):
        trained[f"target-{k}"] = (parts.members, parts.private)
        if games.with_shadows:
            trained[f"shadow-{k}"] = (parts.used, parts.shadow)
    for k, row in enumerate(games.member):
        trained[f"half-{k}"] = (np.flatnonzero(row), games.asked)
    asking = _seed(games.options.seed, "asking")
    return {
        name: Model(
            place=out / name,
            recipe=recipe,
            settings={**settings, "seed": _seed(games.options.seed, name)},
            members=members,
            asked=asked,
            asking_seed=asking,
        )
        for name, (members, asked) in trained.items()
    }


def views_of_all(
    models: Sequence[Model],
    federation: Federation,
    *,
    data: str | None = None,
    workers: int = 1,
    on_progress: OnProgress | None = None,
) -> list[Views]:
    """Return what each model says, in order; trains what is missing.

    `data` is the name of the federation. With it, `workers` models are trained at a time, each by
    a process of its own on one core; without it, one after another in this process.
    `check_models` must have accepted them.
    """
    missing = [model for model in models if not model.was_asked]
    done, workers = len(models) - len(missing), min(workers, len(missing))

    def advance() -> None:
        nonlocal done
        if on_progress is not None:
            on_progress("models", done, len(models))
        done += 1

    advance()
    if data is not None and workers > 1:
        named = [(model, data) for model in missing]
        side_by_side(_finish_named, named, workers=workers, advance=advance)
    else:
        for model in missing:
            finish(model, federation)
            advance()
    return [read_views(model.views_path, model.asked) for model in models]


def check_models(models: Sequence[Model], federation: Federation) -> None:
    """Raise, before anything is trained, if a model cannot be, or its folder has another one."""
    smallest = min(models, key=lambda model: len(model.members))
    try:
        with quiet():
            prepare(_config(smallest, federation), part_of(federation, smallest.members)).stages()
    except SettingsError as error:
        few = f"a model of the attack trains on {len(smallest.members):,} people"
        raise SettingsError(f"{smallest.recipe}: {error} ({few})") from error
    for model in models:
        if model.begun:
            asked = _config(model, federation).model_dump(exclude={"protocol", "candidates"})
            folder, started = records.read_settings(model.place, settings_of)
            check_same(folder, started, asked)
            records.check_data(folder, part_of(federation, model.members).fingerprint)


def finish(model: Model, federation: Federation) -> None:
    """Train a model as far as it is not trained yet, and write what it says."""
    people, how = part_of(federation, model.members), _settings(model, federation)
    with quiet():
        run = train(
            model.recipe, people, out=model.place, resume=model.begun, progress=False, **how
        )
    asking = run.config.model_copy(update={"seed": model.asking_seed})
    scorer = plan_on_device(asking, federation.catalogue).ranker(load_params(run.folder))
    write_views(model.views_path, views_of(federation, model.asked, scorer))


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out warnings about weak guarantees: models of an attack protect nobody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def _settings(model: Model, federation: Federation) -> dict[str, Any]:
    """Return the settings of a model; a cohort larger than its people is all of them."""
    asked = {**model.settings, **EVERYBODY_TRAINS}
    usual, count = configure(model.recipe, federation.name, asked), len(model.members)
    large = [key for key in ("cohort", "stage1_cohort") if getattr(usual, key, 0) > count]
    return {**asked, **dict.fromkeys(large, count)}


def _config(model: Model, federation: Federation) -> Any:
    return configure(model.recipe, federation.name, _settings(model, federation))


def _finish_named(model: Model, data: str) -> None:
    finish(model, _loaded(data))


@lru_cache(maxsize=1)
def _loaded(data: str) -> Federation:
    """Return the data of a name; a worker reads it once for all its models."""
    return load(data)


def _seed(seed: int, purpose: str) -> int:
    return int(rng(seed, 0, f"attack seed {purpose}").integers(2**31))
