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
