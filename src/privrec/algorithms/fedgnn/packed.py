"""One person's graph as arrays of fixed shape, as compiled code takes it."""

from typing import NamedTuple

from privrec.types import Leaf


class Graph(NamedTuple):
    """A person's items and their neighbours, padded to G items; a pytree.

    `items` (G,): for each node an index into a table of item rows. `liked` (G,): whether she likes
    it. `often` (G,): log of how often she used it. `real` (G,): false for padding. `neighbours`
    (G, m, d): vectors of other people who like the item, `known` (G, m) says which are there.
    """

    items: Leaf
    liked: Leaf
    often: Leaf
    real: Leaf
    neighbours: Leaf
    known: Leaf


class GraphClient(NamedTuple):
    """What one person trains on in one round; a pytree.

    `rows` (R,): the catalogue positions of the items whose rows are sent, ascending, padded with
    the size of the catalogue. `graph` has the items that are not hidden; `target` (T,) the hidden
    likes and `negative` (N,) unseen items, all as indices into `rows`. `negatives`: how many of the
    N are real. `pseudo` (P,): rows that she did not touch, as indices into `rows`, padded with R.
    `key` (2,): her random numbers of this round. `size`: how many targets are real.
    """

    rows: Leaf
    graph: Graph
    target: Leaf
    negative: Leaf
    negatives: Leaf
    pseudo: Leaf
    key: Leaf
    size: Leaf
