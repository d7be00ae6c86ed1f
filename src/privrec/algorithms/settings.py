"""The settings of rounds, cohorts and noise that several algorithms share."""

from typing import Annotated

from pydantic import Field, model_validator

from privrec.settings import Budget, Count, Positive, RunSettings, Size
from privrec.types import Law, MechanismName, NoiseKind, ServerOptimizer

NEED_NOISE = ("epsilon", "noise_multiplier", "clip_quantile")
"""The settings that have no effect in a run without noise."""


class RoundSettings(RunSettings):
    """The settings of a training that has rounds."""

    rounds: Count = 100
    """Rounds of training."""
    cohort: Size = 100
    """People per round; with Poisson sampling, the expected number of people per round."""
    sampling: Law = "poisson"
    """How the people of a round are drawn: poisson, or fixed (a fixed number, as in the paper)."""
    validate_every: Count = 50
    """Rounds between two evaluations on the validation people; 0 means never."""
    patience: Count = 0
    """Early stopping: training stops after this number of consecutive evaluations whose Hits@20 on
    the validation people is worse than the best one, and keeps the best state. 0 plays all rounds
    and keeps the last state. Not used under noise."""
    server_optimizer: ServerOptimizer = "adam"
    """The server's optimizer, which uses the mean update: plain, momentum or adam."""
    server_lr: Positive = 0.003
    """Learning rate of the server's optimizer."""

    def validates_after(self, played: int, rounds: int) -> bool:
        """Return whether the model is validated after `played` of `rounds` rounds."""
        if not self.validate_every or not self.validation_share:
            return False
        return played % self.validate_every == 0 or played == rounds

    @property
    def worse_looks(self) -> int:
        """The number of evaluations worse than the best one that stop training; 0 means never."""
        return self.patience if self.budget.mechanism == "none" else 0


class NoiseSettings(RunSettings):
    """The settings of the noise on published sums."""

    mechanism: MechanismName = "none"
    """The noise on each published sum: none, gaussian (L2 bound), laplace (L1 bound)."""
    epsilon: Positive | None = None
    """The privacy budget. Without `noise_multiplier`, the noise is calibrated to this budget. With
    both, the run ends when the budget is spent."""
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-6
    """The delta of the guarantee."""
    noise_multiplier: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Noise scale of a sum divided by its sensitivity; 0 clips updates and adds no noise."""
    clip_norm: Positive = 1.0
    """The clipping bound: the largest norm of one client's update."""
    clip_quantile: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Adaptive clipping: the bound follows this quantile of the update norms; 0: fixed bound."""
    noise: NoiseKind = "secure"
    """Secure noise cannot be repeated or removed. Seeded noise can be repeated and removed, so it
    is for experiments only."""
    train_people: Count = 0
    """The public number of training people, which the accountant uses. 0 derives this number from
    the number of people that the data set declares."""
    force_delta: bool = False
    """Accepts a delta of 1/N or more, with N training people; the guarantee is then very weak."""
    diagnostics: bool = False
    """Writes losses, counts, timings and validation figures also under secure noise. These figures
    are computed from raw data, and no guarantee covers them."""

    @property
    def budget(self) -> Budget:
        """The settings that determine the privacy of the run."""
        return Budget(
            mechanism=self.mechanism,
            epsilon=self.epsilon,
            delta=self.delta,
            noise=self.noise,
            force_delta=self.force_delta,
            train_people=self.train_people,
            diagnostics=self.diagnostics,
        )

    @model_validator(mode="after")
    def _noise_needs_a_mechanism(self) -> "NoiseSettings":
        if self.mechanism == "none":
            for key in NEED_NOISE:
                if getattr(self, key):
                    raise ValueError(
                        f"`{key}` needs a recipe with noise, such as dp-privrec-one or"
                        f" lm-privrec; {self.recipe} adds none"
                    )
        elif self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("give `epsilon`, from which the noise is found, or `noise_multiplier`")
        if self.clip_quantile and self.mechanism == "laplace":
            raise ValueError("`clip_quantile` needs the Gaussian mechanism, not laplace")
        return self


class FederatedSettings(NoiseSettings, RoundSettings):
    """The settings of a federated training."""
