"""The settings of PrivRec+."""

from typing import Annotated, Literal

from pydantic import Field

from privrec.algorithms.settings import FederatedSettings
from privrec.settings import Count, Positive, Share, Size, Weight


class PlusSettings(FederatedSettings):
    """Two sums over people, a tower over a person's history from them, and rounds on top."""

    stage1_cohort: Size = 10**9
    """People in each of the two sums; more than there are means everybody."""
    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for the two sums where there are rounds on top; all of it where not."""

    history: Literal["auto", "closed-form", "subspace"] = "auto"
    """How the history tower is found. closed-form: one sum, a matrix over items. subspace: some
    rounds, no matrix over items, for large catalogues. auto: subspace where there are more items
    than `history_items`."""
    subspace_rank: Size = 512
    """Length of the history tower's vectors in a subspace: more is better and costs more. Under
    noise this setting is ignored: there are 31 directions and popularity."""
    subspace_rounds: Size = 6
    """Rounds of the subspace iteration. Under noise this setting is ignored: there are 3."""
    subspace_power: Weight = 0.25
    """In a subspace, columns are divided by their frequency to this power, so that frequent ones do
    not fill it."""
    popularity_discount: Weight = 0.1
    """In a subspace, an item's score is divided by its frequency to this power."""

    history_rank: Count = 128
    """Length of the history tower's vectors. 0 means the size of the catalogue, which makes the
    largest model. Not used in a subspace. Under noise this setting is ignored: vectors have length
    64, of which the noise decides how many entries are used."""
    history_items: Size = 8000
    """How many items get a vector, the most popular ones. All others are ranked after them, by
    popularity."""
    history_l2: Positive = 50.0
    """Ridge on every column of a person's history, in units of people."""
    history_dropout: Share = 0.7
    """Dropout probability of each column in EDLAE: a ridge that grows with its frequency."""
    activity_power: Weight = 0.5
    """A person with n likes counts n^-this in the history tower. Not used under noise, where all
    people count alike."""
    dislike_input: Weight = 0.5
    """Weight of a disliked item in a person's history; a liked item has weight 1."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1)."""
    feature_input: Weight = 0.2
    """Weight of a person's features; a liked item has weight 1. Not used under noise."""
    context_input: Weight = 0.5
    """Weight of a person's usual contexts; a liked item has weight 1. Not used under noise."""

    embedding_size: Size = 64
    """Length of the vectors that are learned on top of the closed form."""
    embedding_scale: Positive = 0.1
    """Standard deviation of those vectors before training."""
    weight_decay: Weight = 0.0
    """L2 weight decay on what is trained on top of the closed form."""
