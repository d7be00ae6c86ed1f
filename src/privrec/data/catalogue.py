"""What everybody may know of a data set: its items, their titles and features, and the schema.

It travels with a model, so that a phone can rank without anybody's interactions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privrec.data.schema import Bag, Bags, Feature, Schema
from privrec.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Catalogue:
    """The public side of a data set. `titles` are safe to show; `items` has one row an item.

    `undeclared` lists what of it was read off people's data, and so is not covered by a guarantee.
    """

    name: str
    schema: Schema
    item_ids: Sequence[str]
    titles: Sequence[str]
    items: Bags
    positive_above: float
    undeclared: tuple[str, ...] = ()

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self.item_ids)


def to_json(catalogue: Catalogue) -> str:
    """Return the catalogue as one JSON document; 32-bit weights keep every bit."""
    return json.dumps(
        {
            "name": catalogue.name,
            "positive_above": catalogue.positive_above,
            "undeclared": list(catalogue.undeclared),
            "features": [asdict(feature) for feature in catalogue.schema.features],
            "items": list(catalogue.item_ids),
            "titles": list(catalogue.titles),
            "bags": {
                table: {"codes": bag.codes.tolist(), "weights": bag.weights.tolist()}
                for table, bag in catalogue.items.items()
            },
        }
    )


def from_json(text: str | bytes, where: str) -> Catalogue:
    """Return the catalogue of a JSON document; `where` names it in an error."""
    try:
        found: Mapping[str, Any] = json.loads(text)
        features = [
            Feature(**{**feature, "values": tuple(feature["values"])})
            for feature in found["features"]
        ]
        catalogue = Catalogue(
            name=found["name"],
            schema=Schema(features=tuple(features)),
            item_ids=found["items"],
            titles=found["titles"],
            items={
                table: Bag(
                    codes=np.array(bag["codes"], np.int32),
                    weights=np.array(bag["weights"], np.float32),
                )
                for table, bag in found["bags"].items()
            },
            positive_above=float(found["positive_above"]),
            undeclared=tuple(found["undeclared"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is not a whole catalogue ({error})") from error
    if len(catalogue.titles) != catalogue.n_items:
        raise DataError(f"{where} is not a whole catalogue (items and titles differ in number)")
    return catalogue
