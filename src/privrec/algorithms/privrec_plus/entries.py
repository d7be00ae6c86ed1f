"""The entries of people's rows, from what is on their devices; numpy alone, as on a phone."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.layout import Layout
from privrec.data.clients import Clients
from privrec.data.schema import Bag
from privrec.types import F32, IntArray


class Entries(NamedTuple):
    """The nonzero entries of people's rows: row, column, value. Each (row, column) occurs once."""

    person: IntArray
    column: IntArray
    value: npt.NDArray[np.float64]


def entries_of(clients: Clients, layout: Layout) -> Entries:
    """Return the entries of the people's rows."""
    width, people = layout.item_columns, np.arange(len(clients))
    places = clients.owner * width + np.where(clients.liked, 0, layout.n_items) + clients.item
    places = places if layout.dislikes else places[clients.liked]
    places = np.unique(places.astype(np.int64))
    persons, columns, values = [places // width], [places % width], [np.ones(len(places))]
    shares = 1.0 / np.maximum(clients.sizes, 1)
    start = width
    for feature in (*layout.users, *layout.contexts):
        of_person = feature.side == "user"
        bag = (clients.features if of_person else clients.context)[feature.table]
        owner = people if of_person else clients.owner
        person, column, value = _summed(bag, owner, feature.rows)
        persons.append(person)
        columns.append(start + column)
        values.append(value if of_person else value * shares[person])
        start += feature.rows
    return Entries(np.concatenate(persons), np.concatenate(columns), np.concatenate(values))


def dense_rows(clients: Clients, layout: Layout) -> F32:
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
