"""The settings of neural collaborative filtering."""

from typing import Annotated

from pydantic import Field

from privrec.settings import Count, Few, Positive, RunSettings, Size, Weight


class NcfSettings(RunSettings):
    """NeuMF, and how a new person's vectors are learned."""

    embedding_size: Size = 32
    """Length of each of the two vectors of a person, and of an item."""
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (64, 32, 16)
    """Sizes of the layers of the perceptron."""
    embedding_scale: Positive = 0.05
    """Standard deviation of embeddings before training."""

    rounds: Count = 8
    """Rounds of training; one round is one pass over all lines."""
    validate_every: Count = 5
    """Rounds between two evaluations on the validation people; 0 means never."""
    batch_size: Size = 1000
    """Lines per step; `negatives` more instances go with each."""
    negatives: Count = 4
    """Unseen items drawn for each line, anew in every round."""
    dislike_target: Annotated[float, Field(ge=0, le=1)] = 0.7
    """Target of an item rated low, between unseen (0) and liked (1)."""
    learning_rate: Positive = 0.001
    """The learning rate of Adam."""
    weight_decay: Weight = 0.01
    """Keeps vectors short: this times half the squared length of a line's four vectors (of its
    person and its item), as a mean over the batch, is added to the loss."""

    adapt_steps: Few = 40
    """Steps that learn a new person's vectors; 0 ranks the same for everybody."""
    adapt_lr: Positive = 0.05
    """The learning rate of these steps (Adam)."""
    adapt_negatives: Few = 12
    """Unseen items drawn for each like of hers."""
    adapt_decay: Weight = 10.0
    """Holds a new person's vectors near the start: this times half the squared distance, divided
    by the number of her instances, is added to the loss."""
    own_first: bool = True
    """Ranks a person's own items before all others, as the references do."""

    def validates_after(self, played: int, rounds: int) -> bool:
        """Return whether the validation people are looked at after `played` of `rounds` rounds."""
        if not self.validate_every or not self.validation_share:
            return False
        return played % self.validate_every == 0 or played == rounds
