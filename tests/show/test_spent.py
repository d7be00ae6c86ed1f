"""ε while a run goes on: a figure of only some releases says so, and a fault is told."""

import threading
from typing import Any

import pytest

from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release, Sampling
from privrec.show import tail as spent
from privrec.show.status import Spending, Status, sentences
from privrec.show.tail import Figure, Spent

LAW = Sampling(law="poisson", users=4800, cohort=30)
RELEASE = Release(mechanism="gaussian", sampling=LAW, noise_multiplier=1.0)


SPENDING = Spending(
    releases=55,
    noised_releases=55,
    epsilon=None,
    epsilon_of_mechanism=2.8991,
    epsilon_of_releases=55,
    problem=None,
    is_behind=False,
    delta=1e-6,
    target=8.0,
    noise="secure",
)


def privacy(**changes: Any) -> str:
    status = Status(run="run", privacy=SPENDING.model_copy(update=changes))
    return sentences(status)["privacy"]


def test_an_epsilon_of_some_releases_says_so() -> None:
    assert privacy() == "ε 2.90 of 8 at δ 1e-06 · 55 releases"
    part = "(first 10 of 55 releases; the rest is being counted)"
    # A bound from below is rounded down.
    assert privacy(epsilon_of_releases=10) == f"ε ≥ 2.89 of 8 at δ 1e-06 {part}"
    assert "55 releases or more" in privacy(is_behind=True)
    assert privacy(noise="seeded", epsilon_of_releases=10).endswith(part)
    assert privacy(releases=57).startswith("no guarantee: 2 releases had no noise. Of the others:")


def computed(kept: Spent, ledger: PrivacyLedger, **more: Any) -> Figure:
    kept.epsilon(ledger, 1e-6, **more)
    for thread in threading.enumerate():
        if thread.name.startswith("Thread") and "_compute" in thread.name:
            thread.join(60)
    return kept.epsilon(ledger, 1e-6)


def test_a_run_that_ended_does_not_wait_for_its_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spent, "_PATIENCE", 1e9)
    kept = Spent()
    some, all_ = PrivacyLedger().record(RELEASE, 2), PrivacyLedger().record(RELEASE, 3)
    assert computed(kept, some).releases == 2
    assert computed(kept, all_).releases == 2  # It rests.
    assert computed(kept, all_, at_once=True) == Figure(all_.epsilon(1e-6), 3)


@pytest.mark.parametrize("error", [OverflowError("too\nlarge"), ZeroDivisionError()])
def test_a_fault_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fault(*_: object) -> float:
        raise error

    monkeypatch.setattr(PrivacyLedger, "epsilon", fault)
    found = computed(Spent(), PrivacyLedger().record(RELEASE))
    assert found.problem is not None
    said = privacy(problem=found.problem, epsilon_of_mechanism=None)
    assert "being computed" not in said
    assert "\n" not in said
    assert (str(error).split() or ["ZeroDivisionError"])[0] in said


def test_an_infinite_epsilon_is_no_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivacyLedger, "epsilon", lambda *_: float("inf"))
    found = computed(Spent(), PrivacyLedger().record(RELEASE))
    assert found == Figure(None, 1, "there is too little noise")
    assert privacy(problem=found.problem).startswith("no guarantee")
