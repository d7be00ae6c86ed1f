"""The settings of stage one, which learns item vectors by self-supervision, and of both stages."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from privrec.algorithms.reptile.settings import ReptileSettings
from privrec.algorithms.settings import NoiseSettings
from privrec.settings import Positive, Share, Size, Weight
from privrec.types import Law, ServerOptimizer

Stage1 = Literal["none", "paper", "public", "private"]


class StageOneSettings(NoiseSettings):
    """How item vectors are learned from sequences."""

    stage1: Stage1 = "none"
    """How stage one learns item vectors. "none": no stage one. "paper": from all training people
    without noise (no guarantee end to end). "public": from volunteers or public item features.
    "private": under noise."""
    volunteers: Share = 0.1
    """Share of the training people who are in a public stage one; 0 means item features alone."""
    stage1_rounds: Size = 100
    """Rounds of stage one."""
    stage1_cohort: Size = 100
    """People per round of stage one."""
    stage1_clip_norm: Positive = 1.0
    """The largest norm of one client's update in stage one."""
    stage1_lr: Positive = 0.5
    """The learning rate on a client in stage one."""
    stage1_server_lr: Positive = 0.01
    """The learning rate of the server's step in stage one."""
    sampling: Law = "poisson"
    """How a cohort is drawn: Poisson sampling, or a fixed size (the paper's)."""
    server_optimizer: ServerOptimizer = "adam"
    """How the server steps along the mean update: plain, momentum or adam."""
    local_epochs: Size = 1
    """Epochs over a client's data per round."""
    batch_size: Size = 32
    """Instances per step on a device."""
    embedding_size: Size = 64
    """Length of an embedding vector."""
    embedding_scale: Positive = 0.1
    """Standard deviation of embeddings before training."""

    views: Size = 32
    """Masked views of a person's sequence per round, at most."""
    view_window: Annotated[int, Field(ge=3)] = 20
    """Items of a sequence that a view shows, at most."""
    view_segment: Size = 5
    """Items of a masked segment."""
    view_negatives: Size = 64
    """Negative items per masked item in the item loss."""
    view_others: Size = 4
    """Negative segments per masked segment in the segment loss."""
    item_mask_weight: Weight = 1.0
    """Weight of the loss of masked items."""
    segment_mask_weight: Weight = 0.3
    """Weight of the loss of masked segments."""

    @model_validator(mode="after")
    def _a_private_stage_needs_noise(self) -> "StageOneSettings":
        if self.stage1 == "private" and self.mechanism == "none":
            raise ValueError('`stage1` = "private" needs a recipe with noise, such as dp-privrec')
        return self


class TwoStageSettings(ReptileSettings, StageOneSettings):
    """Item vectors first, then the DSSM from them."""

    stage1_share: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of epsilon that a private stage one takes."""
    dssm_weight: Positive = 1.0
    """Weight of the DSSM's loss relative to the self-supervised loss in stage two."""
    item_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How fast stage two changes the item vectors, relative to other parameters; 0 keeps them as
    stage one left them."""
