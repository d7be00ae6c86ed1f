"""The settings of the DSSM and of federated Reptile."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from privrec.algorithms.settings import FederatedSettings, RoundSettings
from privrec.settings import Count, Few, Positive, RunSettings, Size
from privrec.types import Activation, Target

MOST_STEPS = 200_000
"""The most steps of adaptation: some ten seconds. Chosen by hand; a person with 2,000 likes takes
130,000 with the settings of the paper."""


class DssmSettings(RunSettings):
    """The network, what it is trained on, and how a device adapts it."""

    side_information: ClassVar[bool] = True
    """Whether the network knows anything of people, moments and items besides the items' ids."""

    embedding_size: Size = 64
    """Length of an embedding vector."""
    tower_size: Size = 64
    """Outputs of the user's and of the item's tower."""
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 64, 64, 64)
    """Sizes of the layers that compare a user with an item."""
    activation: Activation = "relu"
    """The activation function: relu, sigmoid or tanh."""
    embedding_scale: Positive = 0.1
    """Standard deviation of embeddings before training."""

    target: Target = "implicit"
    """What is predicted: whether a person likes an item, or the rating itself."""
    negatives: Count = 4
    """Unseen items drawn for each like."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1); the paper's is 0."""
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 32
    """Instances per step on a device."""
    whole_batch: bool = False
    """Whether a step on a device goes along the mean over all of its data, which is then one epoch;
    `batch_size` is how much of it is computed at a time, and changes only the speed."""

    adapt_epochs: Few = 5
    """Epochs over a person's own data before ranking for her; 0 means no adaptation."""
    adapt_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = 0
    """The most steps of adaptation; 0 means 200,000."""
    adapt_lr: Positive = 0.1
    """The learning rate of adaptation."""
    adapt_negatives: Few = 4
    """Unseen items drawn for each like in adaptation."""

    @model_validator(mode="after")
    def _ratings_have_no_negatives(self) -> "DssmSettings":
        if self.target == "rating" and (self.negatives or self.adapt_negatives):
            raise ValueError(
                '`negatives` and `adapt_negatives` must be 0 with target = "rating":'
                " an item that was never seen has no rating"
            )
        return self


class LocalSettings(DssmSettings):
    """How a device trains the DSSM on its own data."""

    local_epochs: Size = 1
    """Epochs over a client's data per round."""
    local_steps: Count = 0
    """The most mini-batch steps per client and round; 0 means no limit."""
    local_lr: Positive = 0.1
    """The learning rate on a client."""


class ReptileSettings(FederatedSettings, LocalSettings):
    """The DSSM trained by federated Reptile."""


class ItemIdSettings(ReptileSettings):
    """The same with items' ids only: no features of people or items, and no context."""

    side_information: ClassVar[bool] = False


class MamlSettings(FederatedSettings, DssmSettings):
    """The DSSM trained by federated MAML."""

    support_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of a client's lines that it adapts on in a round; the others judge the result."""
    inner_steps: Size = 1
    """Steps of adaptation on a client per round, each over all of its support."""
    local_lr: Positive = 0.1
    """The learning rate of these steps."""
    second_order: bool = True
    """Whether the gradient goes through the steps of adaptation; if not, it is first-order MAML."""


class CentralSettings(RoundSettings, LocalSettings):
    """The DSSM trained by Reptile where all data lies in one place."""

    group: Size = 5
    """Tasks between two steps of the optimizer; a round has `cohort` tasks."""
