"""An audit of the privacy guarantee in one training run, with canaries.

A canary is an invented person. The toss of a fair coin decides whether she takes part in the
training, which is that of `privrec train`, with its noise, its sampling and its ledger of noised
sums. An attacker then guesses the coins. If the guarantee holds, nobody can guess them better than
the ε of the ledger allows. So the guesses give a lower bound on ε. If it is above the ε of the
ledger, the guarantee does not hold.

There are three bounds. `clopper_pearson` and `one_run` (Steinke, Nasr and Jagielski 2023) come from
jax_privacy. They test a single (ε, δ), and a thousand canaries give little evidence at a δ of 1e-6.
`curve` is implemented here, because no library has it. It compares the area under the attacker's
ROC curve with the largest area that the ledger allows.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, logit, ndtri

from privrec.algorithms.recipes import configure
from privrec.attacks.attackers import measured
from privrec.attacks.findings import findings_of
from privrec.attacks.scores import canary_scores
from privrec.attacks.trial import make_canaries, run_trial
from privrec.data.federation import Federation
from privrec.data.sources import load
from privrec.errors import SettingsError, check_extra
from privrec.privacy.ledger import PrivacyLedger, best_area, best_curve, gaussian_epsilon
from privrec.runs.documents import Audit
from privrec.types import F64, BoolArray, OnProgress

# How the allowed probability of a wrong bound is divided among the three bounds. Chosen by hand,
# before any audit was run.
_SHARES = {"clopper_pearson": 0.1, "one_run": 0.1, "curve": 0.8}
_MOST = 64.0
_STEPS = 12


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

    The canaries' coins come from `seed`; the noise of the training does so only if `noise` is
    "seeded". The trained model is deleted.
    """
    check_extra("jax_privacy", "an audit")
    if not 0.5 < confidence < 1:
        raise SettingsError(f"`confidence` must be > 0.5 and < 1; got {confidence!r}")
    people = load(data) if isinstance(data, str) else data
    budget = configure(recipe, people.name, settings).budget
    made = make_canaries(people, canaries, seed=seed)
    trial = run_trial(recipe, people, made, seed=seed, settings=settings, on_progress=on_progress)
    scores = canary_scores(trial.rounds, made.people, people, on_progress)
    ledger, coins, chance = trial.ledger, made.coins, 1 - confidence
    roc = measured(scores[coins], scores[~coins], confidence=confidence, seed=seed)
    divided = {name: chance * share for name, share in _SHARES.items()}
    alone = lower_bounds(scores, coins, ledger, budget.delta, dict.fromkeys(_SHARES, chance))
    together = lower_bounds(scores, coins, ledger, budget.delta, divided)
    lower = max(bound for bound in together.values() if bound is not None)
    right = coins.astype(np.float64)
    findings = findings_of(trial, made, people)
    epsilon = ledger.epsilon(budget.delta)
    holds = not findings and lower <= epsilon
    promises_nothing = math.isinf(epsilon)
    return Audit(
        recipe=recipe,
        data=people.name,
        seed=seed,
        canaries=canaries,
        releases=ledger.releases,
        noise=budget.noise if budget.mechanism != "none" else "none",
        delta=budget.delta,
        confidence=confidence,
        epsilon_lower=lower,
        epsilon_ledger=None if promises_nothing else epsilon,
        epsilon_most=curve_bound(right, coins, ledger, budget.delta, divided["curve"]),
        holds=None if promises_nothing and not findings else holds,
        bounds=alone,
        auc=roc.auc,
        auc_allowed=best_area(ledger),
        curve=roc.curve,
        allowed=best_curve(ledger),
        findings=findings,
    )


def lower_bounds(
    scores: F64, coins: BoolArray, ledger: PrivacyLedger, delta: float, chances: Mapping[str, float]
) -> dict[str, float | None]:
    """Return lower bounds on ε at this δ, by name; `coins` are true for canaries that took part.

    `chances` has for each bound the probability that it is wrong. `curve` is None if the ledger
    gives no guarantee.
    """
    from jax_privacy.auditing import CanaryScoreAuditor

    # The library's area is not used: it is that of the curve's convex hull, and is above 1/2 even
    # for random scores.
    library = CanaryScoreAuditor(scores[coins], scores[~coins])
    clopper_pearson = library.epsilon_clopper_pearson(chances["clopper_pearson"], delta)
    return {
        "clopper_pearson": float(clopper_pearson),
        "one_run": float(library.epsilon_one_run(chances["one_run"], delta)),
        "curve": curve_bound(scores, coins, ledger, delta, chances["curve"]),
    }


def curve_bound(
    scores: F64, coins: BoolArray, ledger: PrivacyLedger, delta: float, chance: float
) -> float | None:
    """Return the lower bound on ε from the area under the ROC curve; None without a guarantee."""
    if not (ledger.entries and ledger.is_private):
        return None
    area = least_area(scores[coins], scores[~coins], chance)
    return float(epsilon_of_area(ledger, area, delta))


def least_area(members: F64, others: F64, chance: float) -> float:
    """Return a lower bound on the area under the ROC curve, wrong with probability `chance`.

    The variance is that of DeLong, DeLong and Clarke-Pearson (1988), on the scale of log odds. It
    is 0 if all members score above all others, however few they are. So there is a second bound: if
    the area is a, then n independent pairs are all in order with probability a^n.
    """
    # For each score, the share of the other group on its correct side.
    right = [_share_below(members, others), 1 - _share_below(others, members)]
    area = float(right[0].mean())
    most = float(chance ** (1 / min(len(members), len(others))))
    if not 0 < area < 1 or min(len(members), len(others)) < 2:  # One score has no variance.
        return min(area, most)
    error = math.sqrt(sum(float(np.var(part, ddof=1)) / len(part) for part in right))
    odds = logit(area) + ndtri(chance) * error / (area * (1 - area))
    return min(float(expit(odds)), most)


def _share_below(scores: F64, others: F64) -> F64:
    """Return for each score the share of `others` below it; equal scores count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    not_above = np.searchsorted(ordered, scores, side="right")
    return np.asarray((below + not_above) / 2 / len(others), np.float64)


def epsilon_of_area(ledger: PrivacyLedger, area: float, delta: float) -> float:
    """Return the ε for which the attacker's largest possible area under the ROC curve is `area`.

    If all people are in every sum and the noise is Gaussian, ε follows from the area alone.
    Otherwise the noise of all releases is multiplied by one factor until the largest area is
    `area`. The factor is at least 1/64, and the accountant must be able to compute its ε, which
    limits the result.
    """
    if area <= 0.5:
        return 0.0
    if ledger.gaussian_shift is not None:
        return gaussian_epsilon(math.sqrt(2) * float(ndtri(area)), delta)
    low, high = 1.0, 1.0  # The area is at least `area` at `low`, and at most at `high`.
    while best_area(ledger.with_noise(high)) > area and high < _MOST:
        low, high = high, 2 * high
    while best_area(ledger.with_noise(low)) < area and low > 1 / _MOST:
        if math.isinf(ledger.with_noise(low / 2).epsilon(delta)):
            break
        low, high = low / 2, low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        if best_area(ledger.with_noise(middle)) > area:
            low = middle
        else:
            high = middle
    return ledger.with_noise(high).epsilon(delta)
