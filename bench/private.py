"""What privacy costs in time: a noised round, the epsilon of a long ledger, finding the noise."""

import statistics
import time
from collections.abc import Callable

from figures import Figure
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from privrec.privacy import ledger as accountant
from privrec.privacy.calibrate import calibrate
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release, Sampling
from privrec.types import Law
from scale import seconds_of_rounds

LAWS: tuple[Law, ...] = ("poisson", "fixed")


def private_round() -> list[Figure]:
    """Return the time of a round with clipping and noise against one without, the same cohorts."""
    federation = load("movielens-1m")
    # Secure noise would draw other cohorts.
    noised = {"mechanism": "gaussian", "noise_multiplier": 1.0, "noise": "seeded"}
    made = [
        prepare(configure("privrec", "movielens-1m", {"cohort": 100, **extra}), federation)
        for extra in ({}, noised)
    ]
    plain, private = seconds_of_rounds(made)
    return [
        Figure(
            name="round under differential privacy, MovieLens-1M, cohort 100",
            value=private * 1e3,
            unit="ms",
            against="the same round without",
            against_value=plain * 1e3,
        )
    ]


def accounting() -> list[Figure]:
    """Return the time of an epsilon and of a calibration, each from scratch, against its limit."""
    figures = []
    for law in LAWS:
        sampling = Sampling(law=law, users=4832, cohort=100)
        release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=1.0)
        ledger = PrivacyLedger().record(release, 100_000)
        figures += [
            Figure(
                name=f"epsilon of 100,000 rounds, {law}",
                value=_median_ms(lambda ledger=ledger: ledger.epsilon(1e-6)),  # type: ignore[misc]
                unit="ms",
                against="limit",
                against_value=100.0,
            ),
            Figure(
                name=f"calibration for 1,000 rounds, {law}",
                value=_median_ms(
                    lambda sampling=sampling: calibrate(  # type: ignore[misc]
                        sampling, rounds=1000, epsilon=8, delta=1e-6
                    )
                ),
                unit="ms",
                against="limit",
                against_value=3000.0,
            ),
        ]
    return figures


def _median_ms(work: Callable[[], float], times: int = 9) -> float:
    seconds = []
    for _ in range(times):
        accountant.forget()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e3
