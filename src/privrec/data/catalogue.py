"""The public part of a data set: its items, their titles and features, and the schema.

Each model has one, so that a phone can rank items without other people's data.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privrec.data.schema import KINDS, SIDES, Bag, Bags, Feature, Schema
from privrec.data.text import safe_text, short
from privrec.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalogue:
    """The public part of a data set: `titles` are safe to show, `items` has one row per item.

    `undeclared` lists what was computed from people's data, or, for features of items, may have
    been. No privacy guarantee covers it. Without `has_dislikes`, the data have no column of
    ratings, and every line (interaction) is a like.
    """

    name: str
    schema: Schema
    item_ids: Sequence[str]
    titles: Sequence[str]
    items: Bags
    positive_above: float
    undeclared: tuple[str, ...] = ()
    has_dislikes: bool = True

    def __repr__(self) -> str:
        first = ", ".join(short(title, 40) for title in self.titles[:3])
        more = ", …" if self.n_items > 3 else ""
        return f"Catalogue({short(self.name)!r}, {self.n_items:,} items: {first}{more})"

    @property
    def n_items(self) -> int:
        """The number of items."""
        return len(self.item_ids)


def to_json(catalogue: Catalogue) -> str:
    """Return the catalogue as one JSON document with exact float32 weights."""
    return json.dumps(
        {
            "name": catalogue.name,
            "positive_above": catalogue.positive_above,
            "undeclared": list(catalogue.undeclared),
            **({} if catalogue.has_dislikes else {"has_dislikes": False}),
            "features": [asdict(feature) for feature in catalogue.schema.features],
            "items": list(catalogue.item_ids),
            "titles": list(catalogue.titles),
            "bags": {
                table: {"codes": bag.codes.tolist(), "weights": bag.weights.tolist()}
                for table, bag in catalogue.items.items()
            },
        }
    )


@np.errstate(over="ignore")
def from_json(text: str | bytes, where: str) -> Catalogue:
    """Return the catalogue of a JSON document; errors call the document `where`."""
    try:
        document: Mapping[str, Any] = json.loads(text)
        features = [
            Feature(
                **{
                    **feature,
                    "values": tuple(feature["values"]),
                    "mean": float(feature["mean"]),
                    "scale": float(feature["scale"]),
                }
            )
            for feature in document["features"]
        ]
        catalogue = Catalogue(
            name=str(document["name"]),
            schema=Schema(features=tuple(features)),
            item_ids=document["items"],
            titles=[safe_text(title) for title in document["titles"]],
            items={
                table: Bag(
                    codes=np.array(bag["codes"], np.int32),
                    weights=np.array(bag["weights"], np.float32),
                )
                for table, bag in document["bags"].items()
            },
            positive_above=float(document["positive_above"]),
            undeclared=tuple(document["undeclared"]),
            has_dislikes=bool(document.get("has_dislikes", True)),
        )
    except _WRONG as error:
        raise DataError(f"{where} is not a whole catalogue ({error})") from error
    if fault := _fault(catalogue):
        raise DataError(f"{where} is not a whole catalogue ({fault})")
    return catalogue


_WRONG = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that a wrong JSON document can raise."""


def _fault(catalogue: Catalogue) -> str | None:
    for names in (catalogue.item_ids, catalogue.titles):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return "items and titles must be lists of texts"
    if len(catalogue.titles) != catalogue.n_items or not catalogue.n_items:
        return "items and titles differ in number, or there are none"
    if not math.isfinite(catalogue.positive_above):
        return "positive_above is not a finite number"
    features = {feature.table: feature for feature in catalogue.schema.of("item")}
    if features.keys() != catalogue.items.keys():
        return "the items' features are not those of the schema"
    bags = catalogue.items.items()
    faults = (
        *map(_feature_fault, catalogue.schema.features),
        *(_bag_fault(bag, features[table], catalogue.n_items) for table, bag in bags),
    )
    return next(filter(None, faults), None)


def _feature_fault(feature: Feature) -> str | None:
    if not all(isinstance(word, str) for word in (feature.name, *feature.values)):
        return "names and values of features must be texts"
    if feature.side not in SIDES or feature.kind not in KINDS:
        return f"{feature.name!r} is no feature of a user, an item or a context"
    if math.isfinite(feature.mean) and math.isfinite(feature.scale) and feature.scale:
        return None
    return f"{feature.name!r} must have a finite mean, and a finite scale that is not 0"


def _bag_fault(bag: Bag, feature: Feature, n_items: int) -> str | None:
    shape = bag.codes.shape
    if bag.weights.shape != shape or len(shape) != 2 or shape[0] != n_items:
        return f"{feature.name!r} has not one row for each item"
    if bag.codes.size and not (bag.codes.min() >= 0 and bag.codes.max() < max(feature.rows, 1)):
        return f"{feature.name!r} has codes outside of its vocabulary"
    return None if np.isfinite(bag.weights).all() else f"{feature.name!r} has infinite weights"
