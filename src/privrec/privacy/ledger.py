"""All releases of a run, or of several, and what they cost together."""

import math
from dataclasses import dataclass

from privrec.errors import SettingsError
from privrec.privacy import accountant
from privrec.privacy.release import Release


@dataclass(frozen=True, slots=True)
class PrivacyLedger:
    """Which releases were made, and how often. It is immutable: `record` returns a new ledger.

    >>> from privrec.privacy.sampling import Sampling
    >>> sampling = Sampling(law="poisson", users=4800, cohort=30)
    >>> release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=1.0)
    >>> ledger = PrivacyLedger().record(release, times=1000)
    >>> round(ledger.epsilon(1e-6), 3)
    1.298
    """

    entries: tuple[tuple[Release, int], ...] = ()

    @property
    def releases(self) -> int:
        """How many releases were made."""
        return sum(count for _, count in self.entries)

    @property
    def is_private(self) -> bool:
        """Whether every release had noise on it."""
        return all(release.is_private for release, _ in self.entries)

    def record(self, release: Release, times: int = 1) -> "PrivacyLedger":
        """Return the ledger with one more release, or with several of the same kind."""
        if times < 0:
            raise SettingsError(f"`times` must be >= 0; got {times}")
        counts = dict(self.entries)
        if times:
            counts[release] = counts.get(release, 0) + times
        return PrivacyLedger(tuple(counts.items()))

    def compose(self, other: "PrivacyLedger") -> "PrivacyLedger":
        """Return one ledger of both: of two stages, or of two runs on the same people."""
        both = self
        for release, times in other.entries:
            both = both.record(release, times)
        return both

    def epsilon(self, delta: float) -> float:
        """Return ε at this δ, by PLD: 0 for nothing released, infinite if anything had no noise."""
        return accountant.epsilon(self.entries, delta)

    def epsilon_rdp(self, delta: float) -> float:
        """Return ε at this δ, by RDP: an upper bound, used as a cross-check."""
        return accountant.epsilon_rdp(self.entries, delta)

    def cost(self, release: Release, delta: float) -> float:
        """Return by how much one more release would raise ε at this δ."""
        now = self.epsilon(delta)
        return math.inf if math.isinf(now) else self.record(release).epsilon(delta) - now

    def affordable(self, release: Release, *, epsilon: float, delta: float, most: int) -> int:
        """Return how many more such releases, at most `most`, keep ε at this δ within `epsilon`."""
        check_epsilon(epsilon)

        def fits(times: int) -> bool:
            return self.record(release, times).epsilon(delta) <= epsilon

        if fits(most):
            return most
        low, high = 0, most  # fits(low) or low == 0; not fits(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low


def check_epsilon(epsilon: float) -> None:
    """Raise unless ε is above 0."""
    if not epsilon > 0:
        raise SettingsError(f"`epsilon` must be > 0; got {epsilon!r}")
