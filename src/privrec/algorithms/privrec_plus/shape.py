"""What follows from the settings of PrivRec+ and a catalogue: columns, ranks, the regression."""

from dataclasses import replace

from privrec.algorithms.privrec_plus.layout import Layout, layout_of
from privrec.algorithms.privrec_plus.settings import PlusSettings
from privrec.algorithms.privrec_plus.told import Regression
from privrec.data.catalogue import Catalogue
from privrec.errors import SettingsError

_RANK_UNDER_NOISE = 64
_SUBSPACE_RANK_UNDER_NOISE = 32
_SUBSPACE_ROUNDS_UNDER_NOISE = 3
"""Few directions and few rounds: each costs noise. Chosen on held-out pairs of Gowalla, epsilon 2
and 8 (docs/results.md)."""


def in_subspace(settings: PlusSettings, n_items: int) -> bool:
    """Return whether the history tower comes from a subspace iteration."""
    if settings.history == "auto":
        return n_items > settings.history_items
    return settings.history == "subspace"


def items_with_vector(settings: PlusSettings, n_items: int) -> int:
    """Return how many items get a vector; under noise it is at most so many."""
    if settings.mechanism == "none" and in_subspace(settings, n_items):
        return n_items
    return min(n_items, settings.history_items)


def subspace_rounds(settings: PlusSettings) -> int:
    """Return the number of rounds of the subspace iteration."""
    noised = settings.mechanism != "none"
    return _SUBSPACE_ROUNDS_UNDER_NOISE if noised else settings.subspace_rounds


def layout_for(settings: PlusSettings, catalogue: Catalogue) -> Layout:
    """Return the columns of a row; under noise only items, because each column adds noise."""
    if settings.mechanism != "none":
        return Layout(n_items=catalogue.n_items, dislikes=catalogue.has_dislikes)
    dislikes = catalogue.has_dislikes
    if in_subspace(settings, catalogue.n_items):
        dislikes = dislikes and settings.dislike_input > 0
    layout = layout_of(catalogue.schema, catalogue.n_items, dislikes=dislikes)
    return replace(
        layout,
        users=layout.users if settings.feature_input else (),
        contexts=layout.contexts if settings.context_input else (),
    )


def rank_for(settings: PlusSettings, catalogue: Catalogue) -> int:
    """Return the length of the tower's vectors; 0 means the size of the catalogue."""
    if settings.mechanism != "none":
        small = in_subspace(settings, catalogue.n_items)
        return min(_SUBSPACE_RANK_UNDER_NOISE, catalogue.n_items) if small else _RANK_UNDER_NOISE
    if in_subspace(settings, catalogue.n_items):
        layout = layout_for(settings, catalogue)
        return min(settings.subspace_rank, layout.size)
    if settings.history_rank == 0 and catalogue.n_items > settings.history_items:
        raise SettingsError(
            f"`history_rank` must be > 0 for more than {settings.history_items:,} items"
            f" (`history_items`); got 0 with {catalogue.n_items:,} items"
        )
    return min(settings.history_rank, catalogue.n_items)


def regression_of(settings: PlusSettings) -> Regression:
    """Return the settings of the regression."""
    return Regression(
        dislike=settings.dislike_input,
        feature=settings.feature_input,
        context=settings.context_input,
        dislike_target=settings.dislike_target,
        l2=settings.history_l2,
        dropout=settings.history_dropout,
        activity=settings.activity_power,
    )
