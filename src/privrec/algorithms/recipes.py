"""The table of recipes by name, and how a run's settings and plan are made from a recipe."""

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
    """Return the recipe with this name; the error for an unknown name suggests a similar one."""
    check_kind("recipe", name, str, "the name of a recipe")
    if name in RECIPES:
        return RECIPES[name]
    if name in _registered():
        return _load(_registered()[name])
    raise SettingsError(
        f"unknown recipe {name!r}{nearest(name, recipe_names())} ('privrec recipes' lists them)"
    )


def recipe_names() -> list[str]:
    """Return the names of privrec's recipes, then those of other packages in alphabetical order."""
    return [*RECIPES, *(name for name in sorted(_registered()) if name not in RECIPES)]


@cache
def _registered() -> dict[str, EntryPoint]:
    """Return the recipes of other packages (entry points of the group `privrec.recipes`)."""
    return {entry.name: entry for entry in entry_points(group="privrec.recipes")}


def _load(entry: EntryPoint) -> Recipe:
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
    """Return the settings of a recipe for a data set, an instance of `Recipe.settings`.

    The user's settings (`overrides`) replace the recipe's defaults.
    """
    preset = recipe_named(recipe)
    _check_keys(recipe, overrides)
    values = {**preset.values, **preset.presets.get(data, {})}
    if "noise_multiplier" in overrides or overrides.get("mechanism") == "none":
        values.pop("epsilon", None)  # If the noise is given, epsilon follows from it.
    return settings_of({**values, **overrides, "recipe": recipe, "data": data})


def _check_keys(recipe: str, overrides: Mapping[str, Any]) -> None:
    """Raise if a setting exists only in other recipes; the error names these recipes."""
    mine = recipe_named(recipe)
    # The complete settings of an earlier run may contain retired keys.
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
    """Return checked settings from the complete values that a run folder has."""
    return make_settings(recipe_named(str(values.get("recipe"))).settings, values)


def plan_on_device(settings: RunSettings, catalogue: Catalogue) -> Plan:
    """Return a plan for ranking on a device; it has no other person's data."""
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
    """Return the plan of a run without writing any file; raise if the settings are wrong."""
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
    """Return the settings and the protocol; the value "auto" is resolved for the data."""
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
