"""What a device knows about its person, as one row of numbers; needs only numpy on a phone."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.data.clients import Clients
from privrec.data.schema import Bag, Feature, Schema
from privrec.types import FloatArray, IntArray

LIKES, DISLIKES = "history/like", "history/dislike"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a row: likes, dislikes, user features, then shares of contexts.

    An item's column is 1 if the person liked (or disliked) it at least once. A context's column is
    the share of the person's lines that have this context.
    """

    n_items: int
    users: tuple[Feature, ...] = ()
    contexts: tuple[Feature, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many columns each block has: likes, dislikes, then one block per feature."""
        features = (*self.users, *self.contexts)
        return (self.n_items, self.n_items, *(feature.rows for feature in features))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each block among the parameters."""
        return (LIKES, DISLIKES, *map(_block, (*self.users, *self.contexts)))

    @property
    def size(self) -> int:
        """How many columns a row has."""
        return sum(self.sizes)


def layout_of(schema: Schema, n_items: int) -> Layout:
    """Return the layout of a data set's rows, with all user and context features of its schema."""
    return Layout(n_items=n_items, users=schema.of("user"), contexts=schema.of("context"))


def layout_in(schema: Schema, n_items: int, names: set[str]) -> Layout:
    """Return the layout of a model whose parameters have these names."""
    users, contexts = (
        tuple(feature for feature in schema.of(side) if _block(feature) in names)
        for side in ("user", "context")
    )
    return Layout(n_items=n_items, users=users, contexts=contexts)


class Entries(NamedTuple):
    """The nonzero entries of people's rows: row, column, value. Each (row, column) occurs once."""

    person: IntArray
    column: IntArray
    value: npt.NDArray[np.float64]


def entries_of(clients: Clients, layout: Layout) -> Entries:
    """Return the entries of the people's rows."""
    n, people = layout.n_items, np.arange(len(clients))
    kind = np.where(clients.liked, 0, n)
    places = np.unique(clients.owner * (2 * n) + kind + clients.item)
    persons, columns, values = [places // (2 * n)], [places % (2 * n)], [np.ones(len(places))]
    shares = 1.0 / np.maximum(clients.sizes, 1)
    start = 2 * n
    for feature in (*layout.users, *layout.contexts):
        of_person = feature.side == "user"
        bag = (clients.features if of_person else clients.context)[feature.table]
        owner = people if of_person else clients.owner
        person, column, value = _summed(bag, owner, feature.rows)
        persons.append(person)
        columns.append(start + column)
        values.append(value if of_person else value * shares[person])
        start += feature.rows
    return Entries(*map(np.concatenate, (persons, columns, values)))


def dense_rows(clients: Clients, layout: Layout) -> FloatArray:
    """Return the people's rows as a dense array (people, layout.size); a phone has one row."""
    rows = np.zeros((len(clients), layout.size), np.float32)
    person, column, value = entries_of(clients, layout)
    rows[person, column] = value
    return rows


def _summed(bag: Bag, owner: IntArray, n_values: int) -> Entries:
    """Return the bag's weights added up by owner and value, without those that are 0."""
    width = bag.codes.shape[1]
    places = np.repeat(owner, width) * n_values + np.ravel(bag.codes)
    distinct, inverse = np.unique(places, return_inverse=True)
    sums = np.bincount(np.ravel(inverse), np.ravel(bag.weights), minlength=len(distinct))
    some = sums != 0
    return Entries(distinct[some] // n_values, distinct[some] % n_values, sums[some])


def _block(feature: Feature) -> str:
    return f"history/{feature.side}.{feature.name}"
