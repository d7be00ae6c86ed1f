"""What a device knows about its person, as one row of numbers; needs only numpy on a phone."""

from dataclasses import dataclass

from privrec.data.schema import Feature, Schema

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


def _block(feature: Feature) -> str:
    return f"history/{feature.side}.{feature.name}"
