"""The settings of FedGNN."""

from typing import Annotated

from pydantic import Field, model_validator

from privrec.algorithms.settings import FederatedSettings
from privrec.settings import Count, Positive, Size, Weight


class FedGnnSettings(FederatedSettings):
    """A graph attention network on each device, with noise and cover on the device."""

    embedding_size: Size = 64
    """Length of an item's vector."""
    embedding_scale: Positive = 0.1
    """Standard deviation of item vectors before training."""
    hidden_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of a person's likes that a round hides from her graph and predicts."""
    targets: Size = 64
    """The most hidden likes of a person in a round."""
    graph_items: Size = 256
    """The most items of a person's graph in a round; ranking uses all of her items."""
    negatives: Size = 200
    """Unseen items drawn for a person in a round; each hidden like is compared with all."""
    item_rate: Positive = 5.0
    """Multiplies the server's steps on item vectors; other parameters need smaller ones."""

    neighbours: Count = 5
    """The most neighbours of an item that the matching server gives to a device; 0: no matching."""
    expand_after: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the rounds before graphs are expanded by neighbours."""

    pseudo_items: Count = 100
    """Items that a person never touched whose rows her device sends too, with made-up values."""
    local_clip: Positive = 0.1
    """The device clips every number that it sends to [-local_clip, local_clip]."""
    local_noise: Weight = 0.2
    """Scale of the Laplace noise that the device adds to every number that it sends."""

    @property
    def warm_up_rounds(self) -> int:
        """The rounds before the matching; 0 without it."""
        if not self.neighbours:
            return 0
        return min(max(1, round(self.expand_after * self.rounds)), self.rounds - 1)

    @model_validator(mode="after")
    def _matching_is_no_sum(self) -> "FedGnnSettings":
        if self.neighbours and self.mechanism != "none":
            raise ValueError(
                "`neighbours` must be 0 under noise: the matching is no sum, and no noise on sums"
                f" covers it; got {self.neighbours}"
            )
        if self.neighbours and self.rounds < 2:
            raise ValueError(
                "`rounds` must be >= 2 with neighbours, some before the matching and some after;"
                f" got {self.rounds}"
            )
        return self
