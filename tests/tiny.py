"""The smallest population, catalogue and model for a run, shared by all tests that train."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privrec.algorithms.privrec_plus import budget
from privrec.algorithms.privrec_plus import recipe as plus
from privrec.algorithms.privrec_plus.public import Spending, Trust
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import RECIPES
from privrec.core.phase import Executor, Journal, RoundReport, ServerState, Stage, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, play_stage_round
from privrec.data.catalogue import to_json
from privrec.data.federation import Federation
from privrec.data.schema import Schema
from privrec.privacy.release import NoiseSource
from privrec.runs import folder as records

DATA = "synthetic:users=60,items=40,longest=20"
MODEL: dict[str, Any] = {
    "cohort": 8,
    "batch_size": 64,
    "negatives": 1,
    "adapt_negatives": 1,
    "embedding_size": 4,
    "tower_size": 4,
    "hidden": [4],
}


def new_folder(path: Path, prepared: Plan) -> records.RunFolder:
    """Return the folder of a run that is about to begin."""
    federation = prepared.task.federation
    public = to_json(federation.catalogue)
    return records.create_run(path, prepared.task.settings, public, federation.fingerprint)


def without_features(data: Federation) -> Federation:
    """Return the same people; of items nothing is known but their ids."""
    known = data.catalogue
    rest = tuple(feature for feature in known.schema.features if feature.side != "item")
    catalogue = replace(known, schema=Schema(features=rest), items={}, titles=list(known.item_ids))
    return replace(data, catalogue=catalogue)


PLUS_WAYS = (
    "dp-privrec-plus by taste",
    "dp-privrec-plus by kernel",
    "dp-privrec-plus without trust",
)
"""Names for the recipe as it is where items have no features, where people are too few, and where
no feature matters."""


def trust_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let the alignments say that no feature matters."""
    patch.setattr(plus, "trust_of", lambda sums, *rest: Trust(np.zeros(len(sums)), 0.0))


def go_plus_way(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let PrivRec+ release what the name says; any other name changes nothing."""
    if name == PLUS_WAYS[0]:
        patch.setattr(plus, "public_kernels", lambda settings, catalogue: None)
    elif name == PLUS_WAYS[1]:
        few = Spending(popularity=0.99, alignments=0.01, moments=0.0, directions=20)
        patch.setattr(budget, "spending_of", lambda people, noise, items: few)
    elif name == PLUS_WAYS[2]:
        trust_nothing(patch)


class FixedNoise(Unwritten):
    """A journal that writes nothing, with a source of noise that a test gives."""

    def __init__(self, source: NoiseSource) -> None:
        super().__init__()
        self.source = source

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source."""
        return self.source


def round_of(
    data: Federation,
    stage: Stage,
    state: ServerState,
    journal: Journal | None = None,
    run: Executor = fastest,
) -> tuple[ServerState, RoundReport]:
    """Return the state after a round of a stage, with a seeded cohort."""
    draw = cohort_draw(0, secret=False)
    around = Surroundings(take=data.take, run=run, draw=draw, journal=journal or Unwritten())
    return play_stage_round(stage, state, around)


def own(recipe: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the values for which the recipe has a key."""
    return {key: values[key] for key in values if key in RECIPES[recipe].settings.model_fields}


VARIANTS = {
    "privrec-paper",
    "privrec-sgd",
    "lm-privrec",
    "nn-self",
    "fofl-self",
    "ssl-items",
    "dp-privrec",
    "fedgnn",
}
"""Recipes that share most of their code with a quicker one, or compile for seconds."""


def late(*values: Any) -> Any:
    """Return parameters with which a test runs in `make test-all` alone."""
    return pytest.param(*values, marks=pytest.mark.slow)


def each_recipe(names: Iterable[str]) -> pytest.MarkDecorator:
    """Return a mark that runs a test for each recipe; in `make test-all` alone for variants."""
    slow = pytest.mark.slow
    params = [pytest.param(name, marks=[slow] * (name in VARIANTS)) for name in names]
    return pytest.mark.parametrize("recipe", params)


def as_options(settings: dict[str, Any]) -> list[str]:
    """Return settings as the command line takes them."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
