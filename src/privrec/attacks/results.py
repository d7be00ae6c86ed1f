"""From what models say about people to the figures of each kind of attack."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from privrec.attacks.games import Games, Parts
from privrec.attacks.ratio import ratio_attack
from privrec.attacks.roc import Roc, measured
from privrec.attacks.shadow import forest_attack
from privrec.attacks.views import Views
from privrec.data.federation import Federation


def results_of(
    games: Games, views: Mapping[str, Views], federation: Federation, kinds: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the figures of each kind, as JSON has them."""
    found: dict[str, dict[str, Any]] = {}
    turns = range(len(games.parts))
    targets = [views[f"target-{k}"] for k in turns]
    if "paper" in kinds:
        shadows = [views[f"shadow-{k}"] for k in turns]
        figures = forest_attack(federation, games.parts, shadows, targets, seed=games.seed)
        found["paper"] = {name: asdict(figure) for name, figure in figures.items()}
    if "loss" in kinds:
        found["loss"] = _thinned(loss_attack(games.parts, targets)).as_json()
    if "ratio" in kinds:
        count = len(games.member)
        losses = np.stack([views[f"half-{k}"].losses for k in range(count)])
        roc = ratio_attack(losses, games.member[:, games.asked], targets=games.repetitions)
        found["ratio"] = {**_thinned(roc).as_json(), "shadows": count}
    return found


def loss_attack(games: Sequence[Parts], targets: Sequence[Views]) -> Roc:
    """Return how well minus the loss tells members from others.

    Scores are centred per repetition, by the median of both groups together, and then pooled. A
    person may be in several repetitions, so the interval is somewhat too narrow.
    """
    members, others = [], []
    for parts, views in zip(games, targets, strict=True):
        scores = np.nanmedian(views.losses) - views.losses
        inside = np.arange(len(scores)) < len(parts.inside)
        known = np.isfinite(scores)
        members.append(scores[known & inside])
        others.append(scores[known & ~inside])
    return measured(np.concatenate(members), np.concatenate(others))


def _thinned(roc: Roc) -> Roc:
    """Return the same figures with a curve that is short enough for a file."""
    rates = np.array([x for x, _ in roc.curve])
    wanted = np.concatenate([np.linspace(0, 1, 201), np.logspace(-4, 0, 101)])
    kept = np.unique(np.searchsorted(rates, np.sort(wanted), side="right") - 1)
    return replace(roc, curve=[roc.curve[k] for k in kept])
