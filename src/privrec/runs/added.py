"""A released model with items that came after its training."""

from dataclasses import replace
from typing import Any

import polars as pl

from privrec.algorithms.recipe import Recipe
from privrec.data.added import with_new_items
from privrec.device import Model
from privrec.errors import RunFolderError
from privrec.settings import RunSettings

ADDED = (
    " After the training, {items} added from public features alone: no person's data was used for"
    " it, and it costs no epsilon."
)


def with_more_items(
    model: Model, recipe: Recipe, config: RunSettings, items: pl.DataFrame, where: str
) -> Model:
    """Return the model with the items of a table that it does not have yet; `where` names it.

    It promises the same, and says that items were added.
    """
    if recipe.with_items is None:
        raise RunFolderError(
            f"a run of {config.recipe} cannot take new items: dp-privrec-plus can,"
            " where items have public features"
        )
    known = model.catalogue.n_items
    catalogue = with_new_items(model.catalogue, items, where)
    params = recipe.with_items(config, model.params, catalogue, known)
    count = catalogue.n_items - known
    said = ADDED.format(items="1 item was" if count == 1 else f"{count:,} items were")
    told: dict[str, Any] = {key: model.privacy[key] + said for key in ("statement", "short")}
    return replace(model, params=params, catalogue=catalogue, privacy={**model.privacy, **told})
