"""One release: what was published, in the form for the accountant and the ledger."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from privrec.errors import SettingsError
from privrec.privacy.sampling import Sampling
from privrec.types import MechanismName

MECHANISMS = ("none", "gaussian", "laplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A sum over a sampled cohort, published with noise (or without, if `none`).

    `noise_multiplier` is the scale of the noise on the sum divided by the sensitivity of the sum:
    clip_norm for Poisson sampling, twice that for fixed-size cohorts. The scale is the Gaussian's
    standard deviation with updates clipped in the L2 norm, or Laplace's b with updates clipped in
    the L1 norm. `quantile_multiplier` is the same for the count of clipped updates that adaptive
    clipping publishes from the same cohort.
    """

    mechanism: MechanismName
    sampling: Sampling
    noise_multiplier: float = 0.0
    quantile_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise SettingsError(f"`mechanism` must be one of {MECHANISMS}; got {self.mechanism!r}")
        for name in ("noise_multiplier", "quantile_multiplier"):
            value = getattr(self, name)
            if value is not None and not (0 <= value < math.inf):
                raise SettingsError(f"`{name}` must be >= 0 and finite; got {value!r}")
        if self.mechanism == "none" and self.noise_multiplier:
            raise SettingsError("a release without a mechanism has no `noise_multiplier`")
        if self.quantile_multiplier is not None and self.mechanism != "gaussian":
            raise SettingsError("`clip_quantile` needs the Gaussian mechanism")

    @property
    def is_private(self) -> bool:
        """Whether there is noise on everything that is published."""
        return self.joint_multiplier > 0

    @property
    def joint_multiplier(self) -> float:
        """The multiplier of the update and the clipped count together, as one Gaussian release.

        Both come from one cohort, so they are one release of a longer vector. Measured in units of
        the noise, its sensitivity is (z_u^-2 + z_q^-2)^(1/2).
        """
        if self.quantile_multiplier is None:
            return self.noise_multiplier
        if not (self.noise_multiplier and self.quantile_multiplier):
            return 0.0
        return 1 / math.hypot(1 / self.noise_multiplier, 1 / self.quantile_multiplier)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a ledger line."""
        return {**asdict(self), "adjacency": self.sampling.adjacency}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> "Release":
        """Return the release of a ledger line."""
        return cls(
            mechanism=line["mechanism"],
            sampling=Sampling(**line["sampling"]),
            noise_multiplier=line["noise_multiplier"],
            quantile_multiplier=line["quantile_multiplier"],
        )
