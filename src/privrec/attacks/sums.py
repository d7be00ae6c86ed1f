"""The strongest attacker: sees every published sum, and knows all data and who else took part.

People toss a coin whether they take part. For each, the attacker takes away from the sums what all
others added. With everybody in every round, what is left is her contribution or nothing, plus the
noise. Its likelihood ratio is the best test that there is, so with Gaussian noise it lies on the
curve that the ledger allows. Several releases of the same people are several looks at one coin.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from privrec.algorithms.recipes import configure, prepare
from privrec.attacks.canaries import Canaries, with_canaries
from privrec.attacks.roc import Scores, measured
from privrec.attacks.scores import canary_scores, contributions, rest
from privrec.attacks.server import read_off
from privrec.attacks.stacks import stacked
from privrec.attacks.trial import law_of, try_out
from privrec.attacks.watch import Seen
from privrec.data.federation import Federation, part_of
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.tradeoff import best_area, best_curve
from privrec.runs.loop import train
from privrec.seeds import rng
from privrec.types import OnProgress

_MUCH_ALIKE = 0.05
"""The largest mean correlation of two people's scores; it raises the area from Φ(μ/√2) to about
Φ(μ/√1.9). Chosen by hand."""


def read_along(
    recipe: str,
    federation: Federation,
    *,
    kinds: Sequence[str],
    people: int,
    seed: int,
    settings: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Return the figures of the kinds that read published sums, or single contributions.

    Sums without noise hide nothing: a recipe without noise has no figures of them.
    """
    config, found = configure(recipe, federation.name, settings), dict[str, Any]()
    for kind, trainings in (("sums", 1), ("twice", 2)):
        if kind in kinds and config.budget.mechanism != "none":
            found[kind] = sums_attack(
                recipe,
                federation,
                people=people,
                seed=seed,
                trainings=trainings,
                settings=settings,
                on_progress=on_progress,
            )
    views = read_off(prepare(config, federation), seed=seed) if "server" in kinds else []
    if views:
        found["server"] = [view.as_json() for view in views]
    return found


def sums_attack(
    recipe: str,
    federation: Federation,
    *,
    people: int,
    seed: int,
    trainings: int = 1,
    settings: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Return what the attacker reaches who has the sums of some trainings of the same people.

    The figures are those of `Roc`, with the curve and the area that the ledgers allow together.
    """
    chosen = rng(seed, 0, "attack sums").permutation(federation.n_clients)[:people]
    chosen = np.sort(chosen[: federation.n_clients // 2])
    others = part_of(federation, np.setdiff1d(np.arange(federation.n_clients), chosen))
    coins = rng(seed, 0, "attack sums coins").random(len(chosen)) < 0.5
    targets = Canaries(people=federation.take(chosen), coins=coins)
    law = law_of(configure(recipe, federation.name, settings))
    total, ledger = np.zeros(len(coins)), PrivacyLedger()
    for training in range(trainings):
        trial = try_out(
            partial(train, recipe, on_progress=on_progress, seed=seed + training, **settings),
            with_canaries(others, targets, law),
        )
        ledger = ledger.compose(trial.ledger)
        total += exact_scores(trial.seen, targets, others)
    return {
        **measured(total[coins], total[~coins], seed=seed).as_json(),
        "trainings": trainings,
        "allowed": best_curve(ledger),
        "auc_allowed": best_area(ledger),
    }


def exact_scores(seen: Sequence[Seen], targets: Canaries, others: Federation) -> Scores:
    """Return each person's log likelihood ratio, given everybody else's coins.

    Of a sum over drawn people nobody knows who of the others was drawn, as far as they are looked
    for too; there the scores are those of an audit. So they are where people are much alike: the
    noise would move all scores together, and their order would tell members from others though
    no single score does.
    """
    coins = targets.coins.astype(np.float64)
    total, shared = np.zeros(len(coins)), np.zeros((len(coins), len(coins)))
    for one in seen:
        if one.phase.volunteers:
            continue
        if one.phase.release.sampling.share < 1:
            total += canary_scores([one], targets.people, others)
            continue
        stack = stacked(contributions(one, targets.people))
        noises = dict.fromkeys(one.published.update, one.noise_scale)
        gram, left = stack.gram(noises), rest(one, others)
        own = np.diag(gram)
        total += stack.against(left, noises) - gram @ coins + own * coins - own / 2
        shared += gram
    if _correlation(shared) > _MUCH_ALIKE:
        return canary_scores(seen, targets.people, others)
    return total


def _correlation(gram: Scores) -> float:
    """Return the mean correlation of the scores of two people, given their inner products."""
    deviations = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    count = len(gram)
    whole = float((gram / np.outer(deviations, deviations)).sum())
    return (whole - count) / max(count * (count - 1), 1)
