"""The table of recipes: each name stands for a way of training and its settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from privrec.errors import SettingsError, nearest
from privrec.evaluation.references import Reference, ease, item_knn, own_items, popularity
from privrec.privacy import statement
from privrec.settings import RunConfig, make_config

Method = Literal["federated", "items", "history", "central", "reference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A preset: how it trains, its settings, and better settings for data sets we know.

    `presets` were chosen on validation people (`docs/results.md`), never on test people.
    """

    summary: str
    method: Method
    settings: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reference: Callable[[RunConfig], Reference] | None = None

    @property
    def without_noise(self) -> str:
        """What a run of this recipe promises if its releases have no noise."""
        if self.method == "history":
            return statement.SUMS
        on_devices = self.method in ("federated", "items")
        return statement.FEDERATED if on_devices else statement.CENTRAL

    @property
    def server(self) -> str:
        """What the server sees in a run with noise; no guarantee covers it."""
        return statement.SEES_ITEMS if self.method == "history" else statement.SEES_UPDATES

    @property
    def statement(self) -> str:
        """Who is protected, from whom, how strongly, and what is not covered."""
        noised = "mechanism" in self.settings
        return statement.noised(self.server) if noised else self.without_noise


_PRIVREC: Mapping[str, Any] = {
    "rounds": 200,
    "validate_every": 25,
    "cohort": 50,
    "sampling": "fixed",
    "local_epochs": 1,
    "local_lr": 0.1,
    "server_optimizer": "adam",
    "server_lr": 0.003,
    "negatives": 6,
    "dislike_target": 0.7,
    "adapt_epochs": 5,
    "adapt_lr": 0.1,
    "adapt_negatives": 6,
}
_PAPER: Mapping[str, Any] = {
    "rounds": 80,
    "cohort": 20,
    "sampling": "fixed",
    "local_epochs": 100,
    "local_lr": 0.05,
    "server_optimizer": "plain",
    "server_lr": 1.0,
    "negatives": 2,
    "dislike_target": 0.0,
    "adapt_epochs": 100,
    "adapt_lr": 0.05,
    "adapt_negatives": 2,
    "validate_every": 20,
}
_PRIVREC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"rounds": 1000, "validate_every": 100},
    # People use the same apps again, so longer adaptation to the own data helps. Validation would
    # take 77 of 766 people out of training, too many once the settings are chosen.
    "frappe": {
        "rounds": 300,
        "validation_share": 0.0,
        "adapt_epochs": 20,
        "adapt_negatives": 20,
    },
}
# Every parameter gets noise. So layers are small, cohorts are large, and the clipping bound is so
# low that it clips nearly every update.
_NOISED: Mapping[str, Any] = {
    **_PRIVREC,
    "mechanism": "gaussian",
    "sampling": "poisson",
    "epsilon": 8.0,
    "rounds": 80,
    "cohort": 200,
    "clip_norm": 0.1,
    "server_lr": 0.01,
    "embedding_size": 16,
    "tower_size": 16,
    "hidden": (16,),
    "validate_every": 40,
}
_NOISED_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"cohort": 500},
    "frappe": {"adapt_epochs": 20, "adapt_negatives": 20, "validation_share": 0.0},
}
# All training people contribute to the sums; a smaller `stage1_cohort` samples fewer. Adaptation
# takes no gradient steps.
_PLUS: Mapping[str, Any] = {
    "stage1_cohort": 10**9,
    "sampling": "fixed",
    "rounds": 200,
    "cohort": 200,
    "validate_every": 50,
    "server_lr": 0.003,
    "weight_decay": 6e-5,
    "embedding_scale": 0.05,
    "dislike_target": 0.6,
    "adapt_epochs": 0,
}

RECIPES: dict[str, Recipe] = {
    "privrec-plus": Recipe(
        summary="a tower over the device's own history: in closed form, then trained on top",
        method="history",
        settings=_PLUS,
        presets={
            # The settings are chosen already: 2 % validation people are enough for the curve.
            "movielens-1m": {
                "rounds": 300,
                "cohort": 500,
                "history_l2": 200.0,
                "history_dropout": 0.75,
                "validation_share": 0.02,
            },
            "frappe": {
                "rounds": 0,
                "history_rank": 0,
                "history_l2": 20.0,
                "history_dropout": 0.66,
                "dislike_input": 0.0,
                "validation_share": 0.0,
            },
        },
    ),
    # No rounds on top: the noise on a few hundred thousand weights costs more than they gain.
    "dp-privrec-plus": Recipe(
        summary="the same under user-level differential privacy: two noised sums over people",
        method="history",
        settings={
            **_PLUS,
            "mechanism": "gaussian",
            "sampling": "poisson",
            "epsilon": 8.0,
            "rounds": 0,
            "validation_share": 0.0,
        },
    ),
    "privrec": Recipe(
        summary="federated Reptile on the DSSM, server Adam, many short local trainings",
        method="federated",
        settings=_PRIVREC,
        presets=_PRIVREC_PRESETS,
    ),
    "privrec-paper": Recipe(
        summary="the paper's printed settings: few rounds, 100 local epochs, plain averaging",
        method="federated",
        settings=_PAPER,
        presets={"frappe": {"rounds": 40, "cohort": 30}},
    ),
    "privrec-sgd": Recipe(
        summary="one local step in training and in adaptation (the paper's PrivRec-SGD)",
        method="federated",
        settings={**_PRIVREC, "local_steps": 1, "adapt_steps": 1},
        presets=_PRIVREC_PRESETS,
    ),
    "privrec-cen": Recipe(
        summary="the same network trained centrally, adapted on the device as usual",
        method="central",
        settings={**_PRIVREC, "server_lr": 0.001},
        presets=_PRIVREC_PRESETS,
    ),
    "dp-privrec-one": Recipe(
        summary="privrec under user-level differential privacy, in one stage",
        method="federated",
        settings=_NOISED,
        presets=_NOISED_PRESETS,
    ),
    "dp-privrec": Recipe(
        summary="item vectors by self-supervision first, then privrec; both under noise",
        method="federated",
        # Under noise, few rounds with large cohorts are better, in both stages. Noisy steps would
        # destroy the item vectors of stage one, so stage two changes them slowly (`item_rate`).
        settings={
            **_NOISED,
            "item_rate": 0.1,
            "stage1": "private",
            "stage1_rounds": 40,
            "stage1_cohort": 200,
            "stage1_clip_norm": 0.3,
        },
        presets={
            **_NOISED_PRESETS,
            "movielens-1m": {**_NOISED_PRESETS["movielens-1m"], "stage1_cohort": 500},
        },
    ),
    "ssl-items": Recipe(
        summary="stage one alone: neighbours of item vectors learned from sequences",
        method="items",
        settings={
            **_PRIVREC,
            "stage1": "paper",
            "stage1_rounds": 300,
            "adapt_epochs": 0,
        },
        presets={"movielens-1m": {"stage1_rounds": 600}},
    ),
    "lm-privrec": Recipe(
        summary="dp-privrec-one with Laplace noise and updates clipped in the L1 norm",
        method="federated",
        settings={**_NOISED, "mechanism": "laplace", "clip_norm": 1.0},
        presets=_NOISED_PRESETS,
    ),
    "popularity": Recipe(
        summary="most liked first, the same for everybody",
        method="reference",
        settings={"rounds": 0},
        reference=lambda config: popularity(),
    ),
    "own-items": Recipe(
        summary="a person's own items first, then the most liked",
        method="reference",
        settings={"rounds": 0},
        reference=lambda config: own_items(),
    ),
    "item-knn": Recipe(
        summary="own items first, then cosine similarity to what the person likes",
        method="reference",
        settings={"rounds": 0},
        reference=lambda config: item_knn(),
    ),
    "ease": Recipe(
        summary="own items first, then EASE, a linear model in closed form",
        method="reference",
        settings={"rounds": 0},
        reference=lambda config: ease(config.ease_l2),
    ),
}


def recipe_named(name: str) -> Recipe:
    """Return the recipe of that name, or raise with the nearest one."""
    if name not in RECIPES:
        raise SettingsError(
            f"unknown recipe {name!r}{nearest(name, RECIPES)} ('privrec recipes' lists them)"
        )
    return RECIPES[name]


def configure(recipe: str, data: str, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a recipe on a data set, with the user's own on top."""
    preset = recipe_named(recipe)
    settings = {**preset.settings, **preset.presets.get(data, {})}
    if "noise_multiplier" in overrides:
        settings.pop("epsilon", None)  # With a given noise, the recipe's ε must not end the run.
    return make_config(
        {
            **settings,
            **overrides,
            "recipe": recipe,
            "data": data,
        }
    )
