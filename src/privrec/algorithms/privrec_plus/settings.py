"""The settings of PrivRec+."""

from typing import Annotated

from pydantic import Field

from privrec.algorithms.settings import FederatedSettings
from privrec.settings import Count, Positive, Share, Size, Weight


class PlusSettings(FederatedSettings):
    """Two sums over people, a tower over a person's history from them, and rounds on top."""

    stage1_cohort: Size = 10**9
    """People in each of the two sums; more than there are means everybody."""
    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon for the two sums where there are rounds on top; all of it where not."""

    history_rank: Count = 128
    """Length of the history tower's vectors; 0 is that of the catalogue, which ranks best and
    makes the largest model. Under noise the length follows from the noise."""
    history_items: Size = 8000
    """The most popular items that get a vector; all others come after them, by popularity."""
    history_l2: Positive = 50.0
    """Ridge on every column of a person's history, in people."""
    history_dropout: Share = 0.7
    """How much of each column is taken as missing: a ridge that grows with its frequency."""
    dislike_input: Weight = 0.5
    """How much a disliked item in a person's history counts beside a liked one."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1)."""
    feature_input: Weight = 0.2
    """How much a person's features count beside a liked item; none under noise."""
    context_input: Weight = 0.5
    """How much a person's usual contexts count beside a liked item; none under noise."""

    embedding_size: Size = 64
    """Length of the vectors that are learned on top of the closed form."""
    embedding_scale: Positive = 0.1
    """Standard deviation of those vectors before training."""
    weight_decay: Weight = 0.0
    """Pulls what is learned on top of the closed form towards 0."""
