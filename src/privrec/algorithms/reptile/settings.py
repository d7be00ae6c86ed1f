"""The settings of the DSSM and of federated Reptile, and the values that recipes give them.

docs/results.md has how the values were chosen.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

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


class LaplaceSettings(ReptileSettings):
    """The DSSM trained by federated Reptile with Laplace noise."""

    item_weight: Positive = 1.0
    """Multiplies the item rows of an update before it is bounded. Above 1, more of the bound is
    spent on the items, and they move faster than the rest."""


PRIVREC_VALUES: Mapping[str, Any] = {
    "rounds": 200,
    "validate_every": 25,
    "cohort": 50,
    "sampling": "fixed",
    "local_epochs": 1,
    "local_lr": 0.1,
    "server_optimizer": "adam",
    "server_lr": 0.003,
    "negatives": 6,
    "dislike_target": 0.7,
    "adapt_epochs": 5,
    "adapt_lr": 0.1,
    "adapt_negatives": 6,
}
PAPER_VALUES: Mapping[str, Any] = {
    "rounds": 80,
    "cohort": 20,
    "sampling": "fixed",
    "local_epochs": 100,
    "local_lr": 0.05,
    "server_optimizer": "plain",
    "server_lr": 1.0,
    "negatives": 2,
    "dislike_target": 0.0,
    "adapt_epochs": 100,
    "adapt_lr": 0.05,
    "adapt_negatives": 2,
    "validate_every": 20,
}
PRIVREC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"rounds": 1000, "validate_every": 100, "patience": 0},
    # People use the same apps again, so longer adaptation to the own data helps. Validation would
    # take 77 of 766 people out of training, too many once the settings are chosen.
    "frappe": {
        "rounds": 300,
        "validation_share": 0.0,
        "adapt_epochs": 20,
        "adapt_negatives": 20,
    },
}
# With one gradient, everybody's is taken at the same parameters. So rounds learn what features say
# of people and items, and nothing about adapting; after 1,000 of them validation gets no better.
# Small cohorts give more steps of the server for as many visits. The step of adaptation is long.
SGD_VALUES: Mapping[str, Any] = {
    **PRIVREC_VALUES,
    "rounds": 1000,
    "validate_every": 100,
    "cohort": 10,
    "whole_batch": True,
    "local_lr": 1.0,
    "local_steps": 1,
    "adapt_epochs": 1,
    "adapt_steps": 1,
    "adapt_lr": 5.0,
}
SGD_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Negatives would weigh more than the few items that people use again.
    "frappe": {"rounds": 600, "validation_share": 0.0, "adapt_lr": 10.0, "adapt_negatives": 0},
}
# A step of the optimizer after every 5 tasks, and a smaller one than after 50.
CENTRAL_VALUES: Mapping[str, Any] = {**PRIVREC_VALUES, "server_lr": 0.001, "group": 5}
MAML_VALUES: Mapping[str, Any] = {
    **{key: PRIVREC_VALUES[key] for key in PRIVREC_VALUES if key != "local_epochs"},
    "local_lr": 1.0,
    "inner_steps": 1,
    "support_share": 0.5,
    "second_order": True,
}
MAML_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": PRIVREC_PRESETS["movielens-1m"],
    "frappe": {**PRIVREC_PRESETS["frappe"], "adapt_lr": 0.3},
}
# Every parameter gets noise. So layers are small, cohorts are large, and the clipping bound is so
# low that it clips nearly every update.
NOISED_VALUES: Mapping[str, Any] = {
    **PRIVREC_VALUES,
    "mechanism": "gaussian",
    "sampling": "poisson",
    "epsilon": 8.0,
    "rounds": 80,
    "cohort": 200,
    "clip_norm": 0.1,
    "server_lr": 0.01,
    "embedding_size": 16,
    "tower_size": 16,
    "hidden": (16,),
    "validate_every": 40,
}
NOISED_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "movielens-1m": {"cohort": 500},
    "frappe": {"adapt_epochs": 20, "adapt_negatives": 20, "validation_share": 0.0},
}
# An L1 bound is shared by all numbers of an update. So an item is one number, everybody takes part
# in every one of a few rounds, and nearly all of the bound is spent on the items.
LAPLACE_VALUES: Mapping[str, Any] = {
    **NOISED_VALUES,
    "mechanism": "laplace",
    "rounds": 4,
    "clip_norm": 0.1,
    "item_weight": 100.0,
    "server_optimizer": "plain",
    "server_lr": 50.0,
    "negatives": 1,
    "activation": "tanh",
    "embedding_size": 1,
    "embedding_scale": 0.01,
    "tower_size": 1,
    "hidden": (1,),
    "adapt_epochs": 10,
    "adapt_negatives": 1,
}
LAPLACE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # A person has many items, and each gets little of the bound: the server steps further. Such
    # steps are far too long for Frappe, where people have few items.
    "movielens-1m": {"cohort": 4349, "server_lr": 500.0},
    # People use the same apps again, so adaptation is long.
    "frappe": {
        "cohort": 766,
        "adapt_lr": 0.5,
        "adapt_epochs": 50,
        "adapt_negatives": 20,
        "validation_share": 0.0,
    },
}
