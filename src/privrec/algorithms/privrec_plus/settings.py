"""The settings of PrivRec+, without noise and under noise."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from privrec.algorithms.privrec_plus.opinion import MOST_DIMENSIONS
from privrec.algorithms.settings import FederatedSettings
from privrec.settings import Count, Positive, Share, Size, Weight

TOGETHER = 128
"""The number of clients in one compiled call of training rounds. Chosen by hand; not measured."""


def _no_tiny_weight(weight: float) -> float:
    """Refuse tiny weights: rounding of their fourth power could break a contribution's L2 bound."""
    if 0 < weight < 1e-6:
        raise PydanticCustomError("tiny", "must be 0 or >= 1e-6")
    return weight


class SumsSettings(FederatedSettings):
    """The settings of PrivRec+ that runs with and without noise share."""

    stage1_cohort: Size = 10**9
    """People in each sum; a number above the number of people means everybody."""
    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for the sums. Without training rounds, the sums get all of epsilon."""

    history: Literal["auto", "closed-form", "subspace"] = "auto"
    """How the history model is computed: closed-form (from one sum, a matrix over items), subspace
    (in some rounds without such a matrix, for large catalogues), or auto (subspace if there are
    more items than `history_items`)."""
    history_items: Size = 8000
    """The number of popular items that get a vector; all other items rank after these, by
    popularity."""
    dislike_input: Annotated[Weight, AfterValidator(_no_tiny_weight)] = 0.5
    """Weight of a disliked item in a person's history; a liked item has weight 1."""

    embedding_size: Size = 64
    """Length of the vectors that training rounds learn in addition to the closed form."""
    embedding_scale: Positive = 0.1
    """Standard deviation of the learned vectors before training."""
    weight_decay: Weight = 0.0
    """L2 weight decay on the parameters that training rounds learn."""


class PlusSettings(SumsSettings):
    """The settings without noise: a regression on all columns of a person's row."""

    subspace_rank: Size = 512
    """Length of the history model's vectors in a subspace. Longer vectors rank better and cost
    more."""
    subspace_rounds: Size = 6
    """Rounds of the subspace iteration."""
    subspace_power: Weight = 0.35
    """In a subspace, columns are divided by their frequency to this power, so that frequent columns
    do not fill the subspace."""
    popularity_discount: Weight = 0.1
    """In a subspace, an item's score is divided by its frequency to this power."""

    history_rank: Count = 128
    """Length of the history model's vectors, if not in a subspace. 0 means the size of the
    catalogue, which makes the largest model."""
    history_l2: Positive = 50.0
    """Ridge on every column of a person's history, in units of people."""
    history_dropout: Share = 0.7
    """Dropout probability of each column (EDLAE), which acts as a ridge that grows with the
    column's frequency."""
    activity_power: Weight = 0.5
    """A person with n likes has the weight n^-`activity_power` in the history model's sums."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1)."""
    feature_input: Weight = 0.2
    """Weight of a person's features; a liked item has weight 1."""
    context_input: Weight = 0.5
    """Weight of the share of a person's lines with a context; a liked item has weight 1."""

    hop_weight: Weight = 0.0
    """In a subspace, the weight of pair scores, by which an item scores high if many people have it
    together with the person's likes. 0 leaves them out. Not for a federation."""
    hop_items: Size = 200
    """With `hop_weight`, the number of neighbours that each item keeps: those with the largest pair
    scores."""
    hop_people: Size = 3
    """With `hop_weight`, a pair of items is kept if at least this many people have it."""
    recency: Weight = 0.0
    """In a ranking, a person's last like has the weight 1 + `recency`. The addition halves with
    every 3 lines after a like."""
    choose: bool = True
    """Whether settings that are not given are chosen before a simulated training without noise. The
    choice holds out people or lines of the training data (docs/results.md)."""
    second_opinion: Weight = 0.0
    """Weight of the scores of a second model: implicit alternating least squares, from more sums
    over people. 0 leaves it out."""
    second_rank: Annotated[int, Field(ge=1, le=MOST_DIMENSIONS)] = 128
    """Length of the second model's vectors."""
    second_sweeps: Size = 4
    """Sweeps of the second model's training. A sweep has three rounds."""


_EXACT = frozenset(PlusSettings.model_fields) - frozenset(SumsSettings.model_fields)


class NoisedPlusSettings(SumsSettings):
    """The settings under noise: all people have the same weight; features are no input columns."""

    patience: ClassVar[int] = 0  # type: ignore[misc]  # Under noise, the last state is kept.
    retired: ClassVar[frozenset[str]] = _EXACT | {"patience"}

    mechanism: Literal["gaussian"] = "gaussian"
    """The noise on each published sum (L2 bound)."""


def without_noise(settings: SumsSettings) -> PlusSettings | None:
    """Return the settings of a run without noise, or None for a run under noise."""
    if isinstance(settings, PlusSettings) and settings.mechanism == "none":
        return settings
    return None


def in_subspace(settings: SumsSettings, n_items: int) -> bool:
    """Return whether the history model is computed by subspace iteration."""
    if settings.history == "auto":
        return n_items > settings.history_items
    return settings.history == "subspace"
