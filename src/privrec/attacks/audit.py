"""An audit in one training run: canaries take part by coin tosses, and an attacker guesses them.

The training is the one of `privrec train`, with its noise, its sampling and its ledger. If the
guarantee holds, nobody can guess the coins better than the ledger's ε allows. So the guesses give a
lower bound on ε, which must not be above the ledger's.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from privrec.algorithms.recipes import configure
from privrec.attacks.bounds import Bounds, check_confidence, lower_bounds, most_provable
from privrec.attacks.canaries import make_canaries, with_canaries
from privrec.attacks.findings import findings_of
from privrec.attacks.roc import Roc, measured
from privrec.attacks.scores import canary_scores
from privrec.attacks.watch import law_of, watch_training
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.errors import check_extra
from privrec.privacy.ledger import best_area, best_curve
from privrec.runs.loop import train
from privrec.types import OnProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What an audit found. `findings` are mistakes that need no statistics.

    `epsilon_most` is the largest lower bound that so many canaries can give by the ROC area; None
    where nothing is promised. If the ledger is above it, only findings can contradict the ledger.

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
    epsilon_most: float | None
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
            "epsilon_most": self.epsilon_most,
            "holds": None if endless and not self.findings else self.holds,
            "bounds": {
                "clopper_pearson": self.bounds.clopper_pearson,
                "one_run": self.bounds.one_run,
                "curve": self.bounds.curve,
            },
            "auc": asdict(self.roc.auc),
            "auc_allowed": self.auc_allowed,
            "curve": self.roc.curve,
            "allowed": self.allowed,
            "findings": list(self.findings),
        }


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
    check_extra("jax_privacy", "an audit")
    check_confidence(confidence)
    people = load(data) if isinstance(data, str) else data
    config = configure(recipe, people.name, settings)
    made = make_canaries(people, canaries, seed=seed)
    trial = watch_training(
        partial(train, recipe, on_progress=on_progress, seed=seed, **settings),
        with_canaries(people, made, law_of(config)),
    )
    scores = canary_scores(trial.rounds, made.people, people, on_progress)
    ledger, coins, budget = trial.ledger, made.coins, config.budget
    return Audit(
        recipe=recipe,
        data=people.name,
        seed=seed,
        canaries=canaries,
        releases=ledger.releases,
        noise=budget.noise if budget.mechanism != "none" else "none",
        delta=budget.delta,
        confidence=confidence,
        epsilon_ledger=ledger.epsilon(budget.delta),
        epsilon_most=most_provable(coins, ledger, delta=budget.delta, confidence=confidence),
        bounds=lower_bounds(scores, coins, ledger, delta=budget.delta, confidence=confidence),
        roc=measured(scores[coins], scores[~coins], confidence=confidence, seed=seed),
        auc_allowed=best_area(ledger),
        allowed=best_curve(ledger),
        findings=findings_of(trial, made, people),
    )
