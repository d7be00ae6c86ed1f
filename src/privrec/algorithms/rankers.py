"""How trained parameters rank on a device; needs only the recipe's settings and the catalogue."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from privrec.algorithms.privrec_plus.layout import LIKES
from privrec.algorithms.privrec_plus.phases import layout_for
from privrec.algorithms.privrec_plus.scoring import check_shapes, tower_shapes
from privrec.algorithms.privrec_plus.tower import history_scorer
from privrec.algorithms.recipes import recipe_named
from privrec.algorithms.reptile.adapt import adapted_scorer
from privrec.algorithms.reptile.local import local_sgd
from privrec.algorithms.reptile.pack import Instances
from privrec.core.local import LocalTrain
from privrec.data.catalogue import Catalogue
from privrec.errors import RunFolderError
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import Reference, neighbours
from privrec.models.api import ITEM_TABLE, Recommender
from privrec.models.dssm import dssm
from privrec.settings import RunConfig
from privrec.types import Params

Ranker = Callable[[Params], Scorer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rankers:
    """`adapted(params)` ranks on the device.

    `unadapted(params)` ranks without the person's likes and dislikes; None if that is the same.
    """

    adapted: Ranker
    unadapted: Ranker | None = None


def rankers(config: RunConfig, catalogue: Catalogue) -> Rankers:
    """Return how this recipe ranks."""
    recipe = recipe_named(config.recipe)
    if recipe.reference is not None:
        reference = recipe.reference(config)
        return Rankers(adapted=partial(_by_reference, catalogue.n_items, reference))
    if recipe.method == "history":
        by_history = partial(_by_history, config, catalogue)
        return Rankers(
            adapted=partial(by_history, adapted=True), unadapted=partial(by_history, adapted=False)
        )
    if recipe.method == "items":
        return Rankers(adapted=partial(_by_neighbours, catalogue.n_items, config.embedding_size))
    recommender = recommender_of(config, catalogue)

    def adapted(epochs: int) -> Ranker:
        ranker = adapted_scorer(
            recommender,
            _adaptation(config, recommender, epochs),
            catalogue,
            replace(instances_of(config), negatives=config.adapt_negatives),
            seed=config.seed,
        )
        return lambda params: ranker(_fitting(recommender, params))

    return Rankers(
        adapted=adapted(config.adapt_epochs), unadapted=adapted(0) if config.adapt_epochs else None
    )


def recommender_of(config: RunConfig, catalogue: Catalogue) -> Recommender:
    """Return the DSSM of these settings for this catalogue."""
    return dssm(
        catalogue.schema,
        catalogue.n_items,
        embedding_size=config.embedding_size,
        tower_size=config.tower_size,
        hidden=config.hidden,
        activation=config.activation,
        target=config.target,
        embedding_scale=config.embedding_scale,
    )


def instances_of(config: RunConfig) -> Instances:
    """Return how a person's data becomes training instances."""
    return Instances(
        negatives=config.negatives,
        batch_size=config.batch_size,
        dislike_target=config.dislike_target,
        ratings=config.target == "rating",
    )


def _by_reference(n_items: int, reference: Reference, params: Params) -> Scorer:
    check_shapes(params, {name: (n_items,) * np.ndim(params[name]) for name in params})
    return reference.scorer({name: np.asarray(array) for name, array in params.items()})


def _by_history(
    config: RunConfig, catalogue: Catalogue, params: Params, *, adapted: bool
) -> Scorer:
    tower = {name: np.asarray(array) for name, array in params.items()}
    layout = layout_for(config, catalogue)
    if LIKES not in tower:
        raise RunFolderError(f"the parameters have no {LIKES!r}: they are of another recipe")
    check_shapes(tower, tower_shapes(tower, layout))
    return history_scorer(tower, layout, adapted=adapted)


def _fitting(recommender: Recommender, params: Params) -> Params:
    """Return the parameters after checking that their shapes are those of this model."""
    expected = jax.eval_shape(recommender.init, jax.random.key(0))
    check_shapes(params, {name: leaf.shape for name, leaf in expected.items()})
    return params


def _by_neighbours(n_items: int, size: int, params: Params) -> Scorer:
    check_shapes(params, {ITEM_TABLE: (n_items, size)})
    return neighbours(np.asarray(params[ITEM_TABLE]))


def _adaptation(config: RunConfig, recommender: Recommender, epochs: int) -> LocalTrain:
    return local_sgd(
        recommender,
        learning_rate=config.adapt_lr,
        epochs=epochs,
        batch_size=config.batch_size,
        max_steps=config.adapt_steps or None,
    )
