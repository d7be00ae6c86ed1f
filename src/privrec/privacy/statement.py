"""What a run promises, in plain English: never more than its ledger can show."""

import math
from dataclasses import dataclass
from typing import Any

from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.noise import NoiseKind

FEDERATED = (
    "No differential privacy guarantee (epsilon is infinite): raw data stays on the devices, but "
    "updates are averaged without noise, so neither the server nor anybody who sees the model is "
    "prevented from learning about a person who took part; what a device learns while adapting "
    "is never sent."
)
SUMS = (
    "No differential privacy guarantee (epsilon is infinite): every device adds what it knows to "
    "two sums, and the server sees each contribution, which is the person's list of items, unless "
    "contributions are added up before they reach it; sums and updates have no noise, so nobody "
    "who sees the model is prevented from learning about a person who took part; what a device "
    "ranks for itself is never sent."
)
CENTRAL = (
    "No privacy at all (epsilon is infinite): the training people's raw data is collected in one "
    "place, and the result can reveal it; shown for comparison only."
)
SEES_UPDATES = "which sees single updates and is trusted to keep none"
SEES_ITEMS = (
    "which sees what each device adds to the sums, a list of items, and is trusted to keep none"
)


def not_covered(server: str) -> str:
    """Return what no guarantee of ours covers; `server` says what the server sees."""
    return (
        f"not covered: the server, {server}; the people kept for validation and testing; the lists "
        "of items and of feature values, taken as public; and settings that were chosen by looking "
        "at people's data"
    )


def noised(server: str) -> str:
    """Return what recipes with noise promise, before a run says how much."""
    return (
        "User-level differential privacy for the people who train, against anybody who sees the "
        "model during or after training, with the epsilon and delta that a run is given or its "
        f"noise amounts to; {not_covered(server)}."
    )


SEEDED = (
    "the noise of this run came from a seed and can be taken off by whoever has it: the figure is "
    "what the same run with secure noise would give, and is for experiments only"
)

FIRST_STAGE_BARE = (
    "No differential privacy guarantee end to end (epsilon is infinite): the first stage learned "
    "item vectors from everybody's sequences without noise, and they depend on each of them; the "
    "second stage alone, had the first seen nobody, would have epsilon {alone} at delta {delta:g}, "
    "which protects nobody here."
)

_CHANGE = {
    "add or remove one person": "with and without all of one person's data",
    "replace one person": "with all of one person's data replaced by anything else",
}
_LAWS = {"poisson": "Poisson", "fixed": "fixed-size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyReport:
    """What a run costs at `delta`: `epsilon` is None where there is no guarantee.

    `stage_two_epsilon` is what the second stage would cost if the first had seen nobody: no
    guarantee, and given only where there is none.
    """

    epsilon: float | None
    epsilon_rdp: float | None
    delta: float | None
    sampling: str | None
    adjacency: str | None
    rounds: int
    noise_multiplier: float | None
    end_to_end: bool
    stage_two_epsilon: float | None
    statement: str

    def as_json(self) -> dict[str, Any]:
        """Return the `privacy` part of `evaluation.json`."""
        return {name: getattr(self, name) for name in self.__slots__}


def privacy_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    noise: NoiseKind,
    without: str,
    server: str = SEES_UPDATES,
    volunteers: int = 0,
    second: PrivacyLedger | None = None,
) -> PrivacyReport:
    """Return what the ledger's releases promise; `without` says it where they promise nothing.

    `server` says what the server sees. `volunteers` people took part in a first stage without noise
    and are not covered. `second` is the ledger of a second stage whose first had no noise.
    """
    epsilon = ledger.epsilon(delta) if ledger.entries else math.inf
    if math.isinf(epsilon):
        alone = second.epsilon(delta) if second is not None and second.entries else math.inf
        broken = not math.isinf(alone)
        return PrivacyReport(
            epsilon=None,
            epsilon_rdp=None,
            delta=None,
            sampling=None,
            adjacency=None,
            rounds=ledger.releases,
            noise_multiplier=None,
            end_to_end=not broken,
            stage_two_epsilon=alone if broken else None,
            statement=FIRST_STAGE_BARE.format(alone=_up(alone), delta=delta) if broken else without,
        )
    first = ledger.entries[0][0]
    multipliers = {release.joint_multiplier for release, _ in ledger.entries}
    rdp = ledger.epsilon_rdp(delta)
    return PrivacyReport(
        epsilon=epsilon,
        epsilon_rdp=None if math.isinf(rdp) else rdp,
        delta=delta,
        sampling=first.sampling.law,
        adjacency=first.sampling.adjacency,
        rounds=ledger.releases,
        noise_multiplier=multipliers.pop() if len(multipliers) == 1 else None,
        end_to_end=True,
        stage_two_epsilon=None,
        statement=statement(
            ledger,
            epsilon=epsilon,
            delta=delta,
            noise=noise,
            server=server,
            volunteers=volunteers,
        ),
    )


def statement(
    ledger: PrivacyLedger,
    *,
    epsilon: float,
    delta: float,
    noise: NoiseKind,
    server: str = SEES_UPDATES,
    volunteers: int = 0,
) -> str:
    """Return one sentence: who is protected, from whom, how strongly, and what is not covered."""
    first = ledger.entries[-1][0]
    sampling = first.sampling
    covered = f"Each of the {sampling.users - volunteers:,} people who train"
    if volunteers:
        covered += f" and did not volunteer ({volunteers:,} did, and are not covered)"
    rounds = "1 release" if ledger.releases == 1 else f"{ledger.releases:,} releases"
    how = f"{rounds}, {_LAWS[sampling.law]} cohorts, {first.mechanism.capitalize()} noise"
    return (
        f"{covered} is protected against anybody who sees "
        f"the model, during or after training: {_CHANGE[sampling.adjacency]}, anything that "
        f"can be seen is equally likely up to a factor of e^{_up(epsilon)}, apart from a "
        f"probability of {delta:g} (epsilon {_up(epsilon)}, delta {delta:g}; {how}); "
        + not_covered(server)
        + (f"; {SEEDED}." if noise == "seeded" else ".")
    )


def _up(epsilon: float) -> str:
    """Return ε with three figures, rounded up: a statement says less rather than more."""
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    return f"{math.ceil(epsilon * 10**digits - 1e-9) / 10**digits:.{digits}f}"
