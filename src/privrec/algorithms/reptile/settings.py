"""The settings of the DSSM and of federated Reptile, and the values that recipes use.

docs/results.md describes how the values were chosen.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from privrec.algorithms.settings import FederatedSettings, RoundSettings
from privrec.settings import Count, Few, Positive, RunSettings, Size
from privrec.types import Activation, Target

MOST_STEPS = 200_000
"""The upper limit for adaptation steps; this many take about ten seconds. Chosen by hand: with the
settings of the paper, a person with 20,000 likes needs fewer."""


class DssmSettings(RunSettings):
    """The settings of the network, of its training instances, and of its adaptation on a device."""

    side_information: ClassVar[bool] = True
    """Whether the network uses features of people, contexts and items, not only the item ids."""

    embedding_size: Size = 64
    """Length of an embedding vector."""
    tower_size: Size = 64
    """Length of the hidden user vector and of the hidden item vector of the DSSM."""
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 64, 64, 64)
    """Sizes of the layers of the MLP head, which scores a user and an item."""
    activation: Activation = "relu"
    """The activation function: relu, sigmoid or tanh."""
    embedding_scale: Positive = 0.1
    """Standard deviation of embeddings before training."""

    target: Target = "implicit"
    """What the model predicts: whether a person likes an item (implicit), or the rating."""
    negatives: Count = 4
    """Unseen items drawn for each like."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Target of an item rated low, between unseen (0) and liked (1); 0 in the paper."""
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 32
    """Instances per step on a device."""
    whole_batch: bool = False
    """Whether each step on a device uses the mean gradient over all data of the device. One epoch
    is then one step, and `batch_size` changes only the speed."""

    adapt_epochs: Few = 5
    """Epochs of adaptation to a person's own data before ranking; 0 means no adaptation."""
    adapt_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = 0
    """Upper limit for adaptation steps; 0 means 200,000."""
    adapt_lr: Positive = 0.1
    """Learning rate of adaptation."""
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
    """The settings of the DSSM and of its local training on a device."""

    local_epochs: Size = 1
    """Epochs over a client's data per round."""
    local_steps: Count = 0
    """Upper limit for mini-batch steps per client and round; 0 means no limit."""
    local_lr: Positive = 0.1
    """Learning rate of local training on a client."""


class ReptileSettings(FederatedSettings, LocalSettings):
    """The settings of the DSSM trained by federated Reptile."""


class ItemIdSettings(ReptileSettings):
    """The settings of federated Reptile with item ids only, without features and context."""

    side_information: ClassVar[bool] = False


class MamlSettings(FederatedSettings, DssmSettings):
    """The settings of the DSSM trained by federated MAML."""

    support_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of a client's interactions to which the model adapts (the support); the loss after
    adaptation is computed on the other interactions (the query)."""
    inner_steps: Size = 1
    """Adaptation steps on a client per round, each over the whole support."""
    local_lr: Positive = 0.1
    """Learning rate of the adaptation steps in training."""
    second_order: bool = True
    """Whether the gradient includes the derivative of the adaptation steps; false is first-order
    MAML."""


class CentralSettings(RoundSettings, LocalSettings):
    """The settings of the DSSM trained centrally by Reptile."""

    group: Size = 5
    """Tasks (people) per step of the optimizer; a round has `cohort` tasks."""


class LaplaceSettings(ReptileSettings):
    """The settings of the DSSM trained by federated Reptile with Laplace noise."""

    item_weight: Positive = 1.0
    """Factor for the item rows of an update before clipping. Above 1, item rows use more of the
    bound and change faster than the other parameters."""


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
    # People use the same apps again, so longer adaptation helps. With validation, 77 of the 766
    # people could not be used for training.
    "frappe": {
        "rounds": 300,
        "validation_share": 0.0,
        "adapt_epochs": 20,
        "adapt_negatives": 20,
    },
}
# In a round, each person computes one gradient, and all gradients use the same parameters. So
# training does not prepare the model for adaptation, which is one long step. After 1,000 rounds,
# validation does not improve any more. With small cohorts, the server takes more steps for the same
# number of gradients.
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
    # With negatives, the few items that a person uses again would have too little weight.
    "frappe": {"rounds": 600, "validation_share": 0.0, "adapt_lr": 10.0, "adapt_negatives": 0},
}
# The optimizer takes a step after every 5 tasks, so the learning rate is smaller than for 50 tasks.
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
# Every parameter gets noise, so layers are small and cohorts are large. The bound is so low that
# nearly every update is clipped.
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
# All numbers of an update share the L1 bound. So the vector of an item has one number, there are
# few rounds in which everybody takes part, and item rows use nearly all of the bound.
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
    # A person has many items, and each item gets little of the bound. So the server's learning rate
    # is higher than for Frappe, where people have few items.
    "movielens-1m": {"cohort": 4349, "server_lr": 500.0},
    # People use the same apps again, so there are many epochs of adaptation.
    "frappe": {
        "cohort": 766,
        "adapt_lr": 0.5,
        "adapt_epochs": 50,
        "adapt_negatives": 20,
        "validation_share": 0.0,
    },
}
