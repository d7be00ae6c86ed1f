"""An audit in one training run: canaries take part by coin tosses, and an attacker guesses them.

The training is the one of `privrec train`, with its noise, its sampling and its ledger. If the
guarantee holds, nobody can guess the coins better than the ledger's ε allows. So the guesses give a
lower bound on ε, which must not be above the ledger's.
"""

import math
from dataclasses import asdict
from functools import partial
from typing import Any

from privrec.algorithms.recipes import configure
from privrec.attacks.bounds import check_confidence, lower_bounds, most_provable
from privrec.attacks.canaries import make_canaries, with_canaries
from privrec.attacks.findings import findings_of
from privrec.attacks.roc import measured
from privrec.attacks.scores import canary_scores
from privrec.attacks.watch import law_of, watch_training
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.errors import check_extra
from privrec.privacy.ledger import best_area, best_curve
from privrec.runs.documents import Area, Audit
from privrec.runs.loop import train
from privrec.types import OnProgress


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
    at = {"delta": budget.delta, "confidence": confidence}
    bounds, findings = lower_bounds(scores, coins, ledger, **at), findings_of(trial, made, people)
    roc = measured(scores[coins], scores[~coins], confidence=confidence, seed=seed)
    epsilon = ledger.epsilon(budget.delta)
    holds = not findings and bounds.together <= epsilon
    promises_nothing = math.isinf(epsilon)
    return Audit(
        recipe=recipe,
        data=people.name,
        seed=seed,
        canaries=canaries,
        releases=ledger.releases,
        noise=budget.noise if budget.mechanism != "none" else "none",
        **at,
        epsilon_lower=bounds.together,
        epsilon_ledger=None if promises_nothing else epsilon,
        epsilon_most=most_provable(coins, ledger, **at),
        holds=None if promises_nothing and not findings else holds,
        bounds={name: bound for name, bound in asdict(bounds).items() if name != "together"},
        auc=Area(**asdict(roc.auc)),
        auc_allowed=best_area(ledger),
        curve=roc.curve,
        allowed=best_curve(ledger),
        findings=list(findings),
    )
