"""The table of recipes: the one place where a name becomes a way of training."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from privrec.algorithms import references
from privrec.algorithms.factors.dpals import DPALS
from privrec.algorithms.factors.fcf import FCF
from privrec.algorithms.fedgnn.recipe import FEDGNN
from privrec.algorithms.ncf import NCF
from privrec.algorithms.privrec_plus.recipe import DP_PRIVREC_PLUS, PRIVREC_PLUS
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.reptile import recipe as reptile
from privrec.algorithms.reptile.recipe import LM_PRIVREC
from privrec.algorithms.settings import NEED_NOISE
from privrec.algorithms.two_stage.recipe import DP_PRIVREC, SSL_ITEMS
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Split
from privrec.data.federation import Federation, without_people
from privrec.errors import SettingsError, by_likeness, check_kind, got, nearest
from privrec.evaluation.protocols import Protocol, resolve
from privrec.privacy.calibrate import refuse_large_delta
from privrec.settings import RunSettings, make_settings

RECIPES: dict[str, Recipe] = {
    "privrec-plus": PRIVREC_PLUS,
    "dp-privrec-plus": DP_PRIVREC_PLUS,
    "privrec": reptile.PRIVREC,
    "privrec-paper": reptile.PRIVREC_PAPER,
    "privrec-sgd": reptile.PRIVREC_SGD,
    "privrec-cen": reptile.PRIVREC_CEN,
    "fofl-self": reptile.FOFL_SELF,
    "nn-self": reptile.NN_SELF,
    "dp-privrec-one": reptile.DP_PRIVREC_ONE,
    "dp-privrec": DP_PRIVREC,
    "ssl-items": SSL_ITEMS,
    "lm-privrec": LM_PRIVREC,
    "fcf": FCF,
    "dpals": DPALS,
    "fedgnn": FEDGNN,
    "ncf": NCF,
    "popularity": references.POPULARITY,
    "own-items": references.OWN_ITEMS,
    "item-knn": references.ITEM_KNN,
    "ease": references.EASE,
}


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name, or raise with the nearest one."""
    check_kind("recipe", name, str, "the name of a recipe")
    if name in RECIPES:
        return RECIPES[name]
    if name in _registered():
        return _load(_registered()[name])
    raise SettingsError(
        f"unknown recipe {name!r}{nearest(name, recipe_names())} ('privrec recipes' lists them)"
    )


def recipe_names() -> list[str]:
    """Return the names of our recipes, then those of other packages, in order of the alphabet."""
    return [*RECIPES, *(name for name in sorted(_registered()) if name not in RECIPES)]


@cache
def _registered() -> dict[str, EntryPoint]:
    """Return what other packages declare under the entry point `privrec.recipes`, by name."""
    return {entry.name: entry for entry in entry_points(group="privrec.recipes")}


def _load(entry: EntryPoint) -> Recipe:
    """Return a recipe of another package; what is wrong with it is one line with its name."""
    place = f"recipe {entry.name!r} of package {entry.dist.name if entry.dist else entry.module}"
    try:
        recipe = entry.load()
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise SettingsError(f"{place} cannot be loaded: {why}") from error
    if not isinstance(recipe, Recipe):
        raise SettingsError(f"{place} must be a `Recipe`; got {got(recipe)}")
    return recipe


def configure(recipe: str, data: str, overrides: Mapping[str, Any]) -> Any:
    """Return the settings of a recipe on a data set, with the user's own on top.

    They are of the recipe's own class, `Recipe.settings`.
    """
    preset = recipe_named(recipe)
    _check_keys(recipe, overrides)
    values = {**preset.values, **preset.presets.get(data, {})}
    if "noise_multiplier" in overrides or overrides.get("mechanism") == "none":
        values.pop("epsilon", None)  # With given noise, epsilon is a result and not a budget.
    return settings_of({**values, **overrides, "recipe": recipe, "data": data})


def _check_keys(recipe: str, overrides: Mapping[str, Any]) -> None:
    """Raise if a setting is one of other recipes only, and name these."""
    mine = recipe_named(recipe)
    # The whole config of an earlier run may have keys that are retired.
    retired = mine.settings.retired if "recipe" in overrides else frozenset[str]()
    for key in (key for key in overrides if key not in retired):
        has_it = [name for name, one in RECIPES.items() if key in one.settings.model_fields]
        wants_noise = key in NEED_NOISE and overrides[key] and "mechanism" not in overrides
        if wants_noise and not mine.has_noise:
            others = [name for name in has_it if RECIPES[name].has_noise]
            why = f"`{key}` needs a recipe with noise, and {recipe} adds none"
        elif key not in mine.settings.model_fields and has_it:
            others, why = has_it, f"unknown key {key!r} for {recipe}"
        elif key in mine.settings.retired:
            raise SettingsError(
                f"unknown key {key!r} for {recipe}, which had it in earlier versions"
            )
        else:
            continue
        first, *rest = by_likeness(recipe, others)
        more = f" (also {', '.join(rest[:3])})" if rest else ""
        raise SettingsError(f"{why}; did you mean {first}, which has `{key}`?{more}")


def settings_of(values: Mapping[str, Any]) -> RunSettings:
    """Return checked settings from all their values, such as a run folder has them."""
    return make_settings(recipe_named(str(values.get("recipe"))).settings, values)


def plan_on_device(settings: RunSettings, catalogue: Catalogue) -> Plan:
    """Return the plan of a device, which ranks: it has the catalogue, and nobody's data."""
    nobody = without_people(catalogue)
    none = np.zeros(0, np.int64)
    task = Task(
        settings=settings,
        federation=nobody,
        split=Split(public_train=0, train=none, validation=none, test=none),
        whole=nobody,
        protocol=Protocol(name="halves", candidates="unseen", seed=settings.seed),
    )
    return recipe_named(settings.recipe).plan(task)


def prepare(settings: RunSettings, whole: Federation) -> Plan:
    """Return the plan of a run; wrong settings are found before any file is written."""
    budget = settings.budget
    settings, protocol = with_protocol(settings, whole)
    split, federation = protocol.roles(whole), protocol.training(whole)
    if budget.mechanism != "none":
        most = max(split.public_train, budget.train_people)
        refuse_large_delta(budget.delta, most, forced=budget.force_delta)
    if budget.train_people:
        split = replace(split, public_train=budget.train_people)
    task = Task(
        settings=settings, federation=federation, split=split, whole=whole, protocol=protocol
    )
    return recipe_named(settings.recipe).plan(task)


def with_protocol(settings: RunSettings, data: Federation) -> tuple[RunSettings, Protocol]:
    """Return the settings with the protocol's name, where that was left to the data; and it."""
    name, candidates = resolve(settings.protocol, settings.candidates, data)
    protocol = Protocol(
        name=name,
        candidates=candidates,
        seed=settings.seed,
        halving=settings.halving,
        test_share=settings.test_share,
        validation_share=settings.validation_share,
    )
    return settings.model_copy(update={"protocol": name, "candidates": candidates}), protocol
