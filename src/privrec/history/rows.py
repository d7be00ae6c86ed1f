"""What a device knows about its person, as one row: likes, dislikes, features, usual contexts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.data.federation import Clients
from privrec.data.schema import Bag, Feature, Schema
from privrec.types import IntArray

Rows = sp.csr_array
"""One row a person, one column for each thing that can be known of her."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where things stand in a row: likes, dislikes, user features, then shares of contexts.

    An item is 1 if it was liked (or disliked) at all. A context's value is the share of the
    person's lines that have it: where and when she usually is.
    """

    n_items: int
    users: tuple[Feature, ...] = ()
    contexts: tuple[Feature, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many columns each block has: likes, dislikes, then one block a feature."""
        features = (*self.users, *self.contexts)
        return (self.n_items, self.n_items, *(feature.rows for feature in features))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each block among the parameters."""
        features = (*self.users, *self.contexts)
        return (LIKES, DISLIKES, *(f"history/{f.side}.{f.name}" for f in features))

    @property
    def size(self) -> int:
        """How many columns a row has."""
        return sum(self.sizes)


LIKES, DISLIKES = "history/like", "history/dislike"


def layout_of(schema: Schema, n_items: int) -> Layout:
    """Return the layout of a data set's rows, with all that its schema has of a person."""
    return Layout(n_items=n_items, users=schema.of("user"), contexts=schema.of("context"))


def rows_of(clients: Clients, layout: Layout) -> Rows:
    """Return the people's rows, shape (people, layout.size)."""
    liked = _marks(clients, clients.liked, layout.n_items)
    disliked = _marks(clients, ~clients.liked, layout.n_items)
    everybody = np.arange(len(clients))
    users = [_hot(clients.features[f.table], everybody, f.rows) for f in layout.users]
    owner, lines = clients.owner, np.maximum(clients.sizes, 1)
    contexts = [
        sp.diags_array(1.0 / lines) @ _hot(clients.context[f.table], owner, f.rows, len(clients))
        for f in layout.contexts
    ]
    blocks: Sequence[Rows] = [liked, disliked, *users, *contexts]
    return sp.csr_array(sp.hstack(blocks, format="csr", dtype=np.float32))


def without_items(rows: Rows, layout: Layout) -> Rows:
    """Return the rows as those of people who have said nothing about any item yet."""
    known = np.repeat([0.0, 0.0, *(1.0 for _ in layout.sizes[2:])], layout.sizes)
    return sp.csr_array(rows @ sp.diags_array(known.astype(np.float32)))


def _marks(clients: Clients, lines: npt.NDArray[np.bool_], n_items: int) -> Rows:
    """Return 1 for each item of a person's chosen lines, however often it occurs."""
    ones = np.ones(int(lines.sum()), np.float32)
    places = (clients.owner[lines], clients.item[lines])
    marks = sp.csr_array((ones, places), shape=(len(clients), n_items))
    marks.sum_duplicates()
    marks.data[:] = 1
    return marks


def _hot(bag: Bag, owner: IntArray, n_values: int, n_people: int | None = None) -> Rows:
    """Return the bag's weights added up by owner and value."""
    width = bag.codes.shape[1]
    return sp.csr_array(
        (np.ravel(bag.weights), (np.repeat(owner, width), np.ravel(bag.codes))),
        shape=(n_people or len(owner), n_values),
    )
