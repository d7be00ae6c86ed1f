"""An audit in one training run: canaries take part by coin tosses, and an attacker guesses them.

The training is the one of `privrec train`, with its noise, its sampling and its ledger. If the
guarantee holds, nobody can guess the coins better than the ledger's ε allows. So the guesses give a
lower bound on ε, which must not be above the ledger's.
"""

import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from privrec.algorithms.prepared import PreparedRun
from privrec.algorithms.recipes import configure
from privrec.attacks.bounds import Bounds, lower_bounds
from privrec.attacks.canaries import Canaries, make_canaries, with_canaries
from privrec.attacks.roc import Roc, Scores, measured
from privrec.attacks.scores import OnProgress, canary_scores
from privrec.attacks.watch import Seen, untold, watched
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.tradeoff import best_area, best_curve
from privrec.runs.loop import train
from privrec.types import Law

EVERYBODY: dict[str, Any] = {"test_share": 1e-9, "validation_share": 0.0, "protocol": "halves"}
"""Settings with which everybody trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found. `findings` are mistakes that need no statistics.

    `allowed` is the ROC curve that the ledger allows, and `auc_allowed` the area under it.
    """

    recipe: str
    data: str
    seed: int
    canaries: int
    releases: int
    noise: str
    delta: float
    confidence: float
    epsilon_ledger: float
    bounds: Bounds
    roc: Roc
    auc_allowed: float
    allowed: list[tuple[float, float]]
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the ledger."""
        return not self.findings and self.bounds.together <= self.epsilon_ledger

    def as_json(self) -> dict[str, Any]:
        """Return the content of `audit.json`; an infinite ε is null."""
        endless = math.isinf(self.epsilon_ledger)
        return {
            "recipe": self.recipe,
            "data": self.data,
            "seed": self.seed,
            "canaries": self.canaries,
            "releases": self.releases,
            "noise": self.noise,
            "delta": self.delta,
            "confidence": self.confidence,
            "epsilon_lower": self.bounds.together,
            "epsilon_ledger": None if endless else self.epsilon_ledger,
            "holds": self.holds,
            "bounds": self.bounds.as_json(),
            "auc": asdict(self.roc.auc),
            "auc_allowed": self.auc_allowed,
            "curve": self.roc.curve,
            "allowed": self.allowed,
            "findings": list(self.findings),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One training with canaries, as the attacker saw it, and its ledger."""

    prepared: PreparedRun
    seen: list[Seen]
    ledger: PrivacyLedger


def audit(
    recipe: str,
    data: str | Federation,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Audit:
    """Return the audit of a recipe on a data set; the same as `privrec audit`.

    The canaries' coins come from the seed, which the training does not use for its noise unless
    `noise` is "seeded". The trained model is thrown away.
    """
    people = load(data) if isinstance(data, str) else data
    config = configure(recipe, people.name, settings)
    made = make_canaries(people, canaries, seed=seed)
    trial = try_out(recipe, people, made, seed=seed, on_progress=on_progress, **settings)
    found = canary_scores(trial.seen, made.people, people, on_progress)
    return judge(
        found, made, trial, recipe=recipe, data=people.name, seed=seed, confidence=confidence,
        delta=config.budget.delta,
    )  # fmt: skip


def try_out(
    recipe: str,
    people: Federation,
    canaries: Canaries,
    *,
    seed: int,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Trial:
    """Return a training of the recipe among these people and the canaries who take part."""
    law: Law = getattr(configure(recipe, people.name, settings), "sampling", "fixed")
    seen: list[Seen] = []
    kept: list[PreparedRun] = []

    def watch(prepared: PreparedRun) -> PreparedRun:
        kept.append(prepared)
        return watched(prepared, seen.append)

    with tempfile.TemporaryDirectory(prefix="privrec-audit-") as folder:
        run = train(
            recipe,
            with_canaries(people, canaries, law),
            out=Path(folder) / "run",
            watch=watch,
            on_progress=on_progress,
            seed=seed,
            **{**settings, **EVERYBODY},
        )
        ledger = run.ledger
    return Trial(prepared=kept[0], seen=seen, ledger=ledger)


def judge(
    scores: Scores,
    canaries: Canaries,
    trial: Trial,
    *,
    recipe: str,
    data: str,
    seed: int,
    confidence: float,
    delta: float,
) -> Audit:
    """Return what the scores say about the trial's ledger."""
    config, ledger, coins = trial.prepared.config, trial.ledger, canaries.coins
    return Audit(
        recipe=recipe,
        data=data,
        seed=seed,
        canaries=len(canaries),
        releases=ledger.releases,
        noise=config.budget.noise if config.budget.mechanism != "none" else "none",
        delta=delta,
        confidence=confidence,
        epsilon_ledger=ledger.epsilon(delta),
        bounds=lower_bounds(scores, coins, ledger, delta=delta, confidence=confidence),
        roc=measured(scores[coins], scores[~coins], confidence=confidence, seed=seed),
        auc_allowed=best_area(ledger),
        allowed=best_curve(ledger),
        findings=tuple(untold(trial.prepared, trial.seen)) if ledger.is_private else (),
    )
