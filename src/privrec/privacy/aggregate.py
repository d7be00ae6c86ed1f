"""From the sum of a cohort's bounded contributions to what is published: its noise.

One object has the clipping bound, the noise and the release that the accountant counts, so they
always agree.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from privrec.errors import DataError, SettingsError
from privrec.privacy.release import NoiseSource, Release, Sampling, check_noise
from privrec.types import F32, F64, Leaf, Norm

_GRID = 2.0**-12
"""Published values are rounded to multiples of this number times the noise's scale, which is first
rounded down to a power of 2. Chosen by hand (docs/privacy.md, floating point)."""
_QUANTILE_RATE = 0.2
"""The learning rate of adaptive clipping: η_C of Andrew et al. 2021."""
MOST_MOVE = 2.0**40
"""An adaptive bound stays within this factor of the first one: far from the ends of float32."""


class CohortTotal(NamedTuple):
    """The sum of a cohort's bounded contributions before noise, and counts of clients.

    `skipped` clients had nothing to train on; `loss` is the sum over the others. Of the counts,
    only `balance`, which adaptive clipping needs, is published, with noise. A network does not give
    the counts: there `within` is the balance. If `noised` is true, the nodes have already added all
    the noise, to `within` too.

    In compiled code the numbers are arrays; `on_host` makes them numbers.
    """

    update: Mapping[str, Leaf]
    clients: Leaf = 0
    clipped: Leaf = 0
    dropped: Leaf = 0
    skipped: Leaf = 0
    loss: Leaf = None
    within: float | None = None
    noised: Leaf = False

    def on_host(self, skipped: int) -> "CohortTotal":
        """Return what compiled code added up: the update as it is, and its counts as numbers."""
        return CohortTotal(
            self.update,
            clipped=int(self.clipped),
            dropped=int(self.dropped),
            skipped=skipped,
            loss=float(self.loss),
        )

    @property
    def balance(self) -> float:
        """The sum of 1/2 for each update within the bound and -1/2 for each that was clipped."""
        return (
            (self.clients - self.dropped) / 2 - self.clipped if self.within is None else self.within
        )


class Published(NamedTuple):
    """What a round publishes: the noised sum, and the clipping bound of the next round."""

    update: dict[str, Leaf]
    clip_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """How long one client's update may be, and the noise on the sum over a cohort.

    With `clip_quantile`, the clipping bound follows that quantile of the clients' update norms.
    """

    release: Release
    clip_norm: float
    clip_quantile: float | None = None

    def __post_init__(self) -> None:
        if not self.clip_norm > 0:
            raise SettingsError(f"`clip_norm` must be > 0; got {self.clip_norm!r}")
        if self.release.mechanism != "none" and math.isinf(self.clip_norm):
            raise SettingsError(f"`clip_norm` must be finite; got {self.clip_norm!r}")
        if (self.clip_quantile is None) != (self.release.quantile_multiplier is None):
            raise SettingsError("`clip_quantile` and its noise go together")

    @property
    def norm(self) -> Norm:
        """The norm in which updates are bounded."""
        return "l1" if self.release.mechanism == "laplace" else "l2"

    def noise_scale(self, clip_norm: float) -> float:
        """Return the scale of the noise on the sum (the s of docs/privacy.md)."""
        if self.release.mechanism == "none":
            return 0.0
        return self.release.noise_multiplier * self.release.sampling.reach * clip_norm

    def publish_round(self, total: CohortTotal, clip_norm: float, noise: NoiseSource) -> Published:
        """Return everything that a round publishes, as one release.

        If the nodes have added noise, the server adds none.
        """
        if total.noised:
            update = {name: np.asarray(a, np.float32) for name, a in total.update.items()}
            return Published(update, self._moved(clip_norm, total.balance))
        return Published(
            self.publish(total.update, clip_norm, noise),
            self.next_clip_norm(clip_norm, count=total.balance, noise=noise),
        )

    def publish(
        self, total: Mapping[str, Leaf], clip_norm: float, noise: NoiseSource
    ) -> dict[str, Leaf]:
        """Return the sum with noise on every parameter, also on those that no client changed."""
        scale = self.noise_scale(clip_norm)
        if scale == 0:
            return dict(total)
        names = sorted(total)
        whole = np.concatenate([np.ravel(np.asarray(total[name], np.float64)) for name in names])
        if not np.isfinite(whole).all():
            # Noise does not hide infinity or NaN.
            raise DataError("a sum over people is not finite: nothing was published")
        draw = noise.laplace if self.release.mechanism == "laplace" else noise.normal
        noised = _on_grid(whole + scale * draw(len(whole)), scale)
        published: dict[str, Leaf] = {}
        begin = 0
        for name in names:
            size = int(np.size(total[name]))
            published[name] = noised[begin : begin + size].reshape(np.shape(total[name]))
            begin += size
        return published

    def next_clip_norm(self, clip_norm: float, *, count: float, noise: NoiseSource) -> float:
        """Return the bound of the next round (Andrew et al. 2021, section 2.1).

        `count` has 1/2 for each client whose update was within the bound, -1/2 for each that was
        clipped, and 0 for one that was dropped. With noise, it moves the bound towards the wanted
        quantile.
        """
        if scale := self.count_scale:
            count = float(_on_grid(count + scale * noise.normal(1), scale)[0])
        return self._moved(clip_norm, count)

    @property
    def count_scale(self) -> float:
        """The scale of the noise on the count of updates within the bound; 0 without a count."""
        return (self.release.quantile_multiplier or 0.0) * self.release.sampling.reach / 2

    def _moved(self, clip_norm: float, count: float) -> float:
        if self.clip_quantile is None:
            return clip_norm
        # A hostile node can add any number to the count of a secure sum.
        within = min(max(0.5 + count / self.release.sampling.cohort, -50.0), 50.0)
        moved = clip_norm * math.exp(-_QUANTILE_RATE * (within - self.clip_quantile))
        return min(max(moved, self.clip_norm / MOST_MOVE), self.clip_norm * MOST_MOVE)

    def count_behind(self, clip_norm: float, after: float) -> float | None:
        """Return the noised count that moved the bound like this; None without a count."""
        if self.clip_quantile is None:
            return None
        within = self.clip_quantile + math.log(clip_norm / after) / _QUANTILE_RATE
        return (within - 0.5) * self.release.sampling.cohort


def plain(sampling: Sampling) -> Aggregator:
    """Return the mean without a bound and without noise: no guarantee."""
    release = Release(mechanism="none", sampling=sampling)
    return Aggregator(release=release, clip_norm=math.inf)


def gaussian(
    sampling: Sampling,
    *,
    clip_norm: float,
    noise_multiplier: float,
    clip_quantile: float | None = None,
) -> Aggregator:
    """Return the Gaussian mechanism: updates of L2 norm <= `clip_norm`, normal noise on the sum.

    With `clip_quantile`, the multiplier is that of the whole release: a small part of the budget
    goes to the count of clipped updates, and the noise on the update is a little larger.
    """
    check_noise("noise_multiplier", noise_multiplier)
    count = None if clip_quantile is None else 0.0
    if count is not None and noise_multiplier > 0:
        # The noise on the count is a twentieth of the cohort, as in Andrew et al., and at least so
        # large that the noise on the update hardly grows.
        count = max(sampling.cohort / 20 / (sampling.reach / 2), 4 * noise_multiplier)
        noise_multiplier = (noise_multiplier**-2 - count**-2) ** -0.5
    release = Release(
        mechanism="gaussian",
        sampling=sampling,
        noise_multiplier=noise_multiplier,
        quantile_multiplier=count,
    )
    return Aggregator(release=release, clip_norm=clip_norm, clip_quantile=clip_quantile)


def laplace(sampling: Sampling, *, clip_norm: float, noise_multiplier: float) -> Aggregator:
    """Return the Laplace mechanism: updates of L1 norm <= `clip_norm`, Laplace noise on the sum."""
    release = Release(mechanism="laplace", sampling=sampling, noise_multiplier=noise_multiplier)
    return Aggregator(release=release, clip_norm=clip_norm)


def _on_grid(values: F64, scale: float) -> F32:
    """Return the values rounded to a grid, because the lowest bits of noise can reveal the sum."""
    step = grid_step(scale)
    return (np.round(values / step) * step).astype(np.float32)


def grid_step(scale: float) -> float:
    """Return the step of the grid on which sums with noise of this scale are published."""
    return float(2.0 ** math.floor(math.log2(scale)) * _GRID)
