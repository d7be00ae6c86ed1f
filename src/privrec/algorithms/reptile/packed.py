"""One client's training data as arrays of fixed shape, as compiled code takes it."""

from typing import NamedTuple

from privrec.data.schema import Bags
from privrec.types import Leaf


class PackedClient(NamedTuple):
    """One client's training instances, padded to a bucket; a pytree.

    `rows` (R,): the catalogue positions of the items that occur, ascending, padded with the size of
    the catalogue. `item` (C,): for each instance an index into `rows`. `target` (C,). `features`:
    the client's own bags, one row each. `context`: one row an instance. `size`: how many of
    the C instances are real. The order is the order of training.
    """

    rows: Leaf
    item: Leaf
    target: Leaf
    features: Bags
    context: Bags
    size: Leaf


class PackedTask(NamedTuple):
    """One client's instances; a pytree.

    The first `support` places of `client` have the support. The query is at the places from `begin`
    on, which is the next multiple of the batch size. `size` counts both; it is 0 for a client who
    has too little data for two parts.
    """

    client: PackedClient
    support: Leaf
    begin: Leaf

    @property
    def rows(self) -> Leaf:
        """The catalogue positions of the rows that the client touches, padded."""
        return self.client.rows

    @property
    def size(self) -> Leaf:
        """How many instances are real."""
        return self.client.size

    @property
    def end(self) -> Leaf:
        """The place after the last instance of the query."""
        return self.begin + self.size - self.support
