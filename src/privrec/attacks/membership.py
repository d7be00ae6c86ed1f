"""Membership inference: can an attacker tell whether a person's data was used in training a model?

The attack trains models of its own, because it must know whose data each was trained on. Each model
has a run folder, and in its `simulation/` the losses and recommendation lists that it gives to
people. If the same attack is started again, finished models are kept, and interrupted trainings go
on. Some kinds of attack need no models: they read what is published or sent in a training.
docs/attacks.md explains each kind.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from privrec.algorithms.recipes import configure, plan_on_device, prepare, settings_of
from privrec.attacks.attackers import (
    Answers,
    forest_attack,
    loss_attack,
    ratio_attack,
    read_views,
    views_of,
    write_views,
)
from privrec.attacks.scores import sums_attack
from privrec.attacks.server import read_off
from privrec.attacks.trial import EVERYBODY_TRAINS
from privrec.data.federation import Federation, part_of
from privrec.data.sources import load
from privrec.errors import PrivacyWarning, RunFolderError, SettingsError, check_extra, nearest
from privrec.privacy.paper import PRINTED_ATTACKS
from privrec.runs import folder as records
from privrec.runs.documents import Attack, Attacks, Kind, ServerView
from privrec.runs.journal import load_params
from privrec.runs.loop import check_same, train
from privrec.seeds import rng
from privrec.settings import Budget
from privrec.simulate.side_by_side import cores, side_by_side
from privrec.types import BoolArray, IntArray, OnProgress

MODEL_KINDS = ("paper", "loss", "ratio")
"""The kinds of attack that train models of their own."""
KINDS = (*MODEL_KINDS, "sums", "twice", "server")
"""All kinds of attack. Those outside `MODEL_KINDS` read what is published or sent."""
OURS = frozenset(
    ("recipe", "data", "seed", "noise", "train_people", "candidates", "halving", *EVERYBODY_TRAINS)
)
"""Settings that the attack chooses itself."""
FEWEST_SHADOWS = 4
"""The fewest models for kind `ratio`; fewer do not show how much losses vary. Chosen by hand."""
SHADOW_PEOPLE = 1000
"""The number of shadow users in the paper."""
SHADOW_PARTS = 6
"""In a smaller population, one sixth are shadow users, about the share in the paper."""
USED_SHARE = 0.8
"""The share of the shadow users who train the shadow model, as in the paper."""
MOST_PEOPLE = 1000
"""The attacker guesses about at most this many members of a model, and as many others. Chosen by
hand."""
FEWEST_PEOPLE = 5 * SHADOW_PARTS
"""With fewer people, all shadow users would train the shadow model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of an attack.

    `repetitions` is the number of attacked models, `shadows` the number of models for kind `ratio`.
    For `people`, see `MOST_PEOPLE`.
    """

    kinds: Sequence[str] = MODEL_KINDS
    repetitions: int = 5
    shadows: int = 16
    people: int = MOST_PEOPLE
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                known = f"(there are: {', '.join(KINDS)})"
                raise SettingsError(f"unknown kind {kind!r}{nearest(kind, KINDS)} {known}")
        least = {"repetitions": 1, "shadows": FEWEST_SHADOWS, "seed": 0, "people": 2}
        for name, limit in least.items():
            if getattr(self, name) < limit:
                raise SettingsError(f"`{name}` must be >= {limit}; got {getattr(self, name)}")
        if "paper" in self.kinds:
            check_extra("sklearn", "the paper's attack (kind paper)")
        if "ratio" in self.kinds and self.repetitions > self.shadows:
            raise SettingsError(
                "`repetitions` must be <= `shadows` for kind ratio;"
                f" got {self.repetitions} and {self.shadows}"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A model to be trained on the data of `members`, and then queried about the people `asked`.

    `settings` has the model's seed. `asking_seed` fixes the random draws of devices when they adapt
    the model. It is the same for all models of an attack, so that it does not distinguish them.
    """

    place: Path
    recipe: str
    settings: Mapping[str, Any]
    members: IntArray
    asked: IntArray
    asking_seed: int

    @property
    def views_path(self) -> Path:
        """The file with the model's losses and recommendation lists."""
        return self.place / records.SIMULATION / "views.npz"

    @property
    def was_asked(self) -> bool:
        """Whether this file exists and is about the people of `asked`."""
        try:
            return bool(read_views(self.views_path, self.asked))
        except RunFolderError:
            return False

    @property
    def begun(self) -> bool:
        """Whether the folder has more than the leftovers of a killed process."""
        return self.place.exists() and not records.is_untouched(self.place)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """An attack whose settings and folders have been checked; its models can be trained.

    `data` is the name of the data set, or None if it has no name.
    """

    recipe: str
    federation: Federation
    data: str | None
    settings: Mapping[str, Any]
    budget: Budget
    options: Options
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
    """Return how well each kind of attack finds members; the same as `privrec attack`.

    `Options` explains the options. The models are written to `out`, and finished models are not
    trained again. `workers` models are trained at a time, by default one for each core, each in a
    process of its own. So a script that calls this function needs `if __name__ == "__main__":`. If
    `data` is a `Federation`, the models are trained one after another in this process. The noise
    comes from a seed, so the models have no privacy protection.
    """
    prepared = prepare_attack(
        recipe,
        load(data) if isinstance(data, str) else data,
        data=data if isinstance(data, str) else None,
        out=Path(out),
        options=Options(
            kinds=kinds, repetitions=repetitions, shadows=shadows, people=people, seed=seed
        ),
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
    """Return an attack, ready to be run; raise on an error before any model is trained."""
    for key in settings:
        if key in OURS:
            raise SettingsError(f"`{key}` cannot be set: an attack chooses it for each model")
    budget: Budget = configure(recipe, federation.name, settings).budget
    noise = {} if budget.mechanism == "none" else {"noise": "seeded"}
    asked = {**settings, **noise, **EVERYBODY_TRAINS}
    usual, asking_seed = configure(recipe, federation.name, asked), _seed(options.seed, "asking")
    models = {}
    for name, part in who_trains(federation.n_clients, options).items():
        count = len(part.members)
        # A cohort cannot be larger than the number of members of the model.
        large = [key for key in ("cohort", "stage1_cohort") if getattr(usual, key, 0) > count]
        chosen = {"seed": _seed(options.seed, name), **dict.fromkeys(large, count)}
        models[name] = Model(
            place=out / name,
            recipe=recipe,
            settings={**asked, **chosen},
            members=part.members,
            asked=part.asked,
            asking_seed=asking_seed,
        )
    if models:
        check_models(list(models.values()), federation)
    return Prepared(
        recipe=recipe,
        federation=federation,
        data=data,
        settings=settings,
        budget=budget,
        options=options,
        models=models,
    )


def play_attack(
    prepared: Prepared, *, workers: int | None = None, on_progress: OnProgress | None = None
) -> Attack:
    """Return the results of the attacks, after training the models that are missing."""
    if workers is not None and workers < 1:
        raise SettingsError(f"`workers` must be >= 1; got {workers}")
    budget, options = prepared.budget, prepared.options
    answers = answers_of(prepared, workers or cores(), on_progress)
    return Attack(
        recipe=prepared.recipe,
        data=prepared.federation.name,
        epsilon=budget.epsilon,
        delta=None if budget.mechanism == "none" else budget.delta,
        repetitions=options.repetitions,
        seed=options.seed,
        attacks=Attacks.model_validate(figures_of(prepared, answers, on_progress)),
    )


def figures_of(
    prepared: Prepared, answers: Mapping[str, Answers], on_progress: OnProgress | None = None
) -> dict[str, Kind | list[ServerView]]:
    """Return the results of each kind; `answers` has the answers of each model, by name.

    A recipe without noise has no result for the kinds `sums` and `twice`, because its sums hide
    nothing.
    """
    recipe, federation, options = prepared.recipe, prepared.federation, prepared.options
    targets, shadows, halves = (
        [answer for name, answer in answers.items() if name.startswith(kind)]
        for kind in ("target", "shadow", "half")
    )
    figures: dict[str, Kind | list[ServerView]] = {}
    if "paper" in options.kinds:
        accuracy, auc = forest_attack(federation, shadows, targets, seed=options.seed)
        printed = PRINTED_ATTACKS.get(federation.name, {}).get(recipe, {})
        figures["paper"] = Kind(
            accuracy=accuracy, auc=auc, printed=printed.get(prepared.budget.epsilon)
        )
    if "loss" in options.kinds:
        figures["loss"] = loss_attack(targets).thinned()
    if "ratio" in options.kinds:
        losses = np.stack([views.losses for views, _ in halves])
        member = np.stack([inside for _, inside in halves])
        roc = ratio_attack(losses, member, targets=options.repetitions).thinned()
        figures["ratio"] = roc.model_copy(update={"shadows": len(halves)})
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


# --- who trains which model ---------------------------------------------------------------------


class Part(NamedTuple):
    """The positions of the people who train a model, and of the people whom it is asked about."""

    members: IntArray
    asked: IntArray


def who_trains(people: int, options: Options) -> dict[str, Part]:
    """Return the members and the asked people of each model that the chosen kinds need, by name."""
    if people < FEWEST_PEOPLE:
        raise SettingsError(f"an attack needs at least {FEWEST_PEOPLE} people; got {people}")
    kinds, seed = options.kinds, options.seed
    models = {}
    for k in range(options.repetitions if "paper" in kinds or "loss" in kinds else 0):
        target, shadow = parts_of(people, seed=seed, repetition=k, most=options.people)
        models[f"target-{k}"] = target
        if "paper" in kinds:
            models[f"shadow-{k}"] = shadow
    asked = np.sort(rng(seed, 0, "attack asked").permutation(people)[: 2 * options.people])
    coins = coins_of(people, seed=seed, models=options.shadows if "ratio" in kinds else 0)
    for k, row in enumerate(coins):
        models[f"half-{k}"] = Part(np.flatnonzero(row), asked)
    return models


def parts_of(
    people: int, *, seed: int, repetition: int, most: int = MOST_PEOPLE
) -> tuple[Part, Part]:
    """Return the people of the target and of the shadow in one repetition of the paper's attack.

    The target and the shadow have no person in common. The attacker asks the shadow about all
    shadow users, of whom the first ones are its members. He asks the target about some of its
    members and about as many people who are neither its members nor shadow users.

    >>> target, shadow = parts_of(60, seed=0, repetition=0, most=20)
    >>> [len(people) for people in (*target, *shadow)]
    [25, 40, 8, 10]
    """
    order = rng(seed, repetition, "attack parts").permutation(people)
    count = min(SHADOW_PEOPLE, people // SHADOW_PARTS)
    used = round(USED_SHARE * count)
    half = (people - count) // 2
    trained, unused, members, others, _ = np.split(
        order, np.cumsum([used, count - used, half, half])
    )
    asked = np.concatenate([np.sort(members[:most]), np.sort(others[:most])])
    known = np.concatenate([np.sort(trained), np.sort(unused)])
    return Part(np.sort(members), asked), Part(np.sort(trained), known)


def coins_of(people: int, *, seed: int, models: int) -> BoolArray:
    """Return who trains which model, shape (models, people), true with probability 1/2."""
    coins = [rng(seed, k, "attack coins").random(people) < 0.5 for k in range(models)]
    return np.array(coins, np.bool_).reshape(models, people)


# --- training the models ------------------------------------------------------------------------


def answers_of(
    prepared: Prepared, workers: int, on_progress: OnProgress | None = None
) -> dict[str, Answers]:
    """Return the answers of each model, by name, after training the models that are missing.

    If the data has a name, `workers` models are trained at a time, each in its own process on one
    core; otherwise one after another in this process.
    """
    models, data = prepared.models, prepared.data
    missing = [model for model in models.values() if not model.was_asked]
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
            finish(model, prepared.federation)
            advance()
    return {
        name: (read_views(model.views_path, model.asked), np.isin(model.asked, model.members))
        for name, model in models.items()
    }


def check_models(models: Sequence[Model], federation: Federation) -> None:
    """Raise before any training if a model cannot be trained or its folder has another model."""
    smallest = min(models, key=lambda model: len(model.members))
    try:
        with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
            config = configure(smallest.recipe, federation.name, smallest.settings)
            prepare(config, part_of(federation, smallest.members)).stages()
    except SettingsError as error:
        few = f"a model of the attack trains on {len(smallest.members):,} people"
        raise SettingsError(f"{smallest.recipe}: {error} ({few})") from error
    for model in models:
        if model.begun:
            config = configure(model.recipe, federation.name, model.settings)
            folder, started = records.read_settings(model.place, settings_of)
            check_same(folder, started, config.model_dump(exclude={"protocol", "candidates"}))
            records.check_data(folder, part_of(federation, model.members).fingerprint)


def finish(model: Model, federation: Federation) -> None:
    """Train a model, or finish its training, and write its losses and recommendation lists."""
    people, how = part_of(federation, model.members), dict(model.settings)
    # These models protect nobody, so a weak guarantee needs no warning.
    with warnings.catch_warnings(action="ignore", category=PrivacyWarning):
        run = train(
            model.recipe, people, out=model.place, resume=model.begun, progress=False, **how
        )
    asking = run.config.model_copy(update={"seed": model.asking_seed})
    scorer = plan_on_device(asking, federation.catalogue).ranker(load_params(run.folder))
    write_views(model.views_path, views_of(federation, model.asked, scorer))


def _finish_named(model: Model, data: str) -> None:
    finish(model, _loaded(data))


@lru_cache(maxsize=1)
def _loaded(data: str) -> Federation:
    """Return the data set of a name; a worker process reads it once for all its models."""
    return load(data)


def _seed(seed: int, purpose: str) -> int:
    return int(rng(seed, 0, f"attack seed {purpose}").integers(2**31))
