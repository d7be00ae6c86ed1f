"""What a device knows about its person, as one row of numbers; needs only numpy on a phone."""

from dataclasses import dataclass

from privrec.data.schema import Feature, Schema

LIKES, DISLIKES = "history/like", "history/dislike"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a row: likes, dislikes, user features, then shares of contexts.

    An item's column is 1 if the person liked (or disliked) it at least once. A context's column is
    the share of the person's lines that have this context. Data without dislikes has no columns
    for them.
    """

    n_items: int
    dislikes: bool = True
    users: tuple[Feature, ...] = ()
    contexts: tuple[Feature, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many columns each block has: likes, dislikes, then one block per feature."""
        features = (*self.users, *self.contexts)
        return (*self._item_blocks.values(), *(feature.rows for feature in features))

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each block among the parameters."""
        return (*self._item_blocks, *map(_block, (*self.users, *self.contexts)))

    @property
    def item_columns(self) -> int:
        """How many columns stand for items, liked or disliked; they come first."""
        return sum(self._item_blocks.values())

    @property
    def size(self) -> int:
        """How many columns a row has."""
        return sum(self.sizes)

    @property
    def _item_blocks(self) -> dict[str, int]:
        return dict.fromkeys((LIKES, DISLIKES) if self.dislikes else (LIKES,), self.n_items)


def layout_of(schema: Schema, n_items: int, *, dislikes: bool = True) -> Layout:
    """Return the layout of a data set's rows, with all user and context features of its schema."""
    users, contexts = schema.of("user"), schema.of("context")
    return Layout(n_items=n_items, dislikes=dislikes, users=users, contexts=contexts)


def layout_in(schema: Schema, n_items: int, names: set[str]) -> Layout:
    """Return the layout of a model whose parameters have these names."""
    users, contexts = (
        tuple(feature for feature in schema.of(side) if _block(feature) in names)
        for side in ("user", "context")
    )
    dislikes = bool({DISLIKES, learned(DISLIKES)} & names)
    return Layout(n_items=n_items, dislikes=dislikes, users=users, contexts=contexts)


def learned(name: str) -> str:
    """Return the name of a block's learned vectors."""
    return name.replace("history/", "learn/", 1)


def _block(feature: Feature) -> str:
    return f"history/{feature.side}.{feature.name}"
