"""The settings of PrivRec+, without noise and under noise."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from privrec.algorithms.settings import FederatedSettings
from privrec.settings import Count, Positive, Share, Size, Weight

TOGETHER = 128
"""How many clients are in one compiled call of the rounds on top. Chosen by hand; no measurement is
on record."""


def _no_tiny_weight(weight: float) -> float:
    """Refuse weights whose fourth power is rounded: then a contribution is longer than counted."""
    if 0 < weight < 1e-6:
        raise PydanticCustomError("tiny", "must be 0 or >= 1e-6")
    return weight


class SumsSettings(FederatedSettings):
    """Two sums over people, a tower over a person's history from them, and rounds on top."""

    stage1_cohort: Size = 10**9
    """People in each of the two sums; more than there are means everybody."""
    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for the two sums where there are rounds on top; all of it where not."""

    history: Literal["auto", "closed-form", "subspace"] = "auto"
    """How the history tower is found. closed-form: one sum, a matrix over items. subspace: some
    rounds, no matrix over items, for large catalogues. auto: subspace where there are more items
    than `history_items`."""
    history_items: Size = 8000
    """How many items get a vector, the most popular ones. All others are ranked after them, by
    popularity."""
    dislike_input: Annotated[Weight, AfterValidator(_no_tiny_weight)] = 0.5
    """Weight of a disliked item in a person's history; a liked item has weight 1."""

    embedding_size: Size = 64
    """Length of the vectors that are learned on top of the closed form."""
    embedding_scale: Positive = 0.1
    """Standard deviation of those vectors before training."""
    weight_decay: Weight = 0.0
    """L2 weight decay on what is trained on top of the closed form."""


class PlusSettings(SumsSettings):
    """The same with a regression on everything in a person's row."""

    subspace_rank: Size = 512
    """Length of the history tower's vectors in a subspace: more is better and costs more."""
    subspace_rounds: Size = 6
    """Rounds of the subspace iteration."""
    subspace_power: Weight = 0.35
    """In a subspace, columns are divided by their frequency to this power, so that frequent ones do
    not fill it."""
    popularity_discount: Weight = 0.1
    """In a subspace, an item's score is divided by its frequency to this power."""

    history_rank: Count = 128
    """Length of the history tower's vectors. 0 means the size of the catalogue, which makes the
    largest model. Not used in a subspace."""
    history_l2: Positive = 50.0
    """Ridge on every column of a person's history, in units of people."""
    history_dropout: Share = 0.7
    """Dropout probability of each column in EDLAE: a ridge that grows with its frequency."""
    activity_power: Weight = 0.5
    """A person with n likes counts n^-this in the history tower."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1)."""
    feature_input: Weight = 0.2
    """Weight of a person's features; a liked item has weight 1."""
    context_input: Weight = 0.5
    """Weight of a person's usual contexts; a liked item has weight 1."""

    hop_weight: Weight = 0.0
    """In a subspace, the weight of pairs: of items that people have together with a liked item,
    counted directly, beside the vectors. 0 leaves them out. Not for a federation."""
    hop_items: Size = 200
    """With `hop_weight`, how many items stand beside each item, those of the largest weight."""
    hop_people: Size = 3
    """With `hop_weight`, pairs that fewer people have are not kept."""
    recency: Weight = 0.0
    """When ranking, a person's last like weighs 1 + this. The addition halves with every 3 lines
    that came since."""
    choose: bool = True
    """Chooses settings that are not given, before a simulated training without noise, on people or
    lines that are held out of the training data for it (docs/results.md)."""
    second_opinion: Weight = 0.0
    """Weight of a second opinion beside the history tower: implicit alternating least squares, from
    more sums over people. 0 leaves it out."""
    second_rank: Size = 128
    """Length of its vectors."""
    second_sweeps: Size = 4
    """Its sweeps, of three rounds each."""


_EXACT = frozenset(PlusSettings.model_fields) - frozenset(SumsSettings.model_fields)


class NoisedPlusSettings(SumsSettings):
    """The same under noise: all people count alike, and the noise decides how much is learned."""

    patience: ClassVar[int] = 0  # type: ignore[misc]  # Under noise no state is chosen by looks.
    retired: ClassVar[frozenset[str]] = _EXACT | {"patience"}

    mechanism: Literal["gaussian"] = "gaussian"
    """The noise on each published sum (L2 bound)."""


def without_noise(settings: SumsSettings) -> PlusSettings | None:
    """Return the settings of a run without noise; None under noise."""
    if isinstance(settings, PlusSettings) and settings.mechanism == "none":
        return settings
    return None


def in_subspace(settings: SumsSettings, n_items: int) -> bool:
    """Return whether the history tower comes from a subspace iteration."""
    if settings.history == "auto":
        return n_items > settings.history_items
    return settings.history == "subspace"
