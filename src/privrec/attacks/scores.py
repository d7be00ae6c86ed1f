"""Scores of people, by an attacker who sees all published sums and does not know some coin tosses.

A coin toss decides for each canary or target i whether she takes part: b_i is 1 or 0. The published
sum of a round is u = Σ b_i c_i + others + noise. The attacker knows each contribution c_i, because
everything that is sent to devices is public. He also knows what the other people add, if the
guarantee holds against such an attacker. The score of a person is the log likelihood ratio of b_i =
1 against b_i = 0.

`canary_scores`, for an audit, treats the other canaries as additional noise. An audit may use any
score that is computed from published values, so it also looks for entries without noise and for
rounds with the same noise.

In `exact_scores`, the attacker also knows the coins of all other targets. If all people are in
every round, only one person's contribution (or 0) and the noise are left. This is the best possible
test. With Gaussian noise, its ROC curve is the one that the ledger allows. Each further release
with the same people is one more observation of the same coin.

A person's contribution to a matrix over items is given by a vector, so inner products are computed
without the matrices: that of r rᵀ and s sᵀ is (r·s)², and that of their upper triangles is ((r·s)²
+ Σ r²s²) / 2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp

from privrec.attacks.attackers import Roc, measured
from privrec.attacks.trial import Canaries, ObservedRound, flattened, run_trial, sender
from privrec.core.contribution import Contribution, add_to
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation, part_of
from privrec.privacy.ledger import PrivacyLedger, best_area, best_curve
from privrec.seeds import rng
from privrec.types import F64, Leaf, OnProgress

_LEAST_NOISE = 1e-3
"""The smallest noise that the attacker assumes, relative to the noise that the recipe declares."""
_FEWEST = 50
"""The fewest entries from which the noise is estimated."""
_MANY_ZEROS = 0.01
"""With noise on a grid, about one entry in 10,000 is exactly 0. If more than this share is, some
entries have no noise."""
_SILENT = 1e3
"""This is subtracted from a person's score for each entry that she would change and that was
published as exactly 0."""
_COMPARED = 20_000
"""How many entries of each round have their noise compared with that of other rounds."""
_ALIKE, _MOST_PAIRS = 0.7, 3
_SHARED = 0.1
"""The noise in the difference of two rounds with shared noise, relative to that of one round."""
_MUCH_ALIKE = 0.05
"""The largest mean correlation of two people's scores in `exact_scores`. It raises the area under
the ROC curve from Φ(μ/√2) to about Φ(μ/√1.9). Chosen by hand."""


def sums_attack(
    recipe: str,
    federation: Federation,
    *,
    people: int,
    seed: int,
    trainings: int = 1,
    settings: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> Roc:
    """Return the result of an attacker who sees the sums of several trainings on the same people.

    A fair coin decides for each person whether she takes part. The result includes the ROC curve
    and the area that the ledgers of all trainings together allow.
    """
    chosen = rng(seed, 0, "attack sums").permutation(federation.n_clients)[:people]
    chosen = np.sort(chosen[: federation.n_clients // 2])
    others = part_of(federation, np.setdiff1d(np.arange(federation.n_clients), chosen))
    coins = rng(seed, 0, "attack sums coins").random(len(chosen)) < 0.5
    targets = Canaries(people=federation.take(chosen), coins=coins)
    total, ledger = np.zeros(len(coins)), PrivacyLedger()
    for training in range(trainings):
        trial = run_trial(
            recipe,
            others,
            targets,
            seed=seed + training,
            settings=settings,
            on_progress=on_progress,
        )
        ledger = ledger.compose(trial.ledger)
        total += exact_scores(trial.rounds, targets, others)
    allowed = {"allowed": best_curve(ledger), "auc_allowed": best_area(ledger)}
    roc = measured(total[coins], total[~coins], seed=seed)
    return roc.model_copy(update={"trainings": trainings, **allowed})


def canary_scores(
    rounds: Sequence[ObservedRound],
    canaries: Clients,
    others: Federation,
    on_progress: OnProgress | None = None,
) -> F64:
    """Return the score of each canary; the higher it is, the more likely she took part.

    `others` are all other people who train.
    """
    total = np.zeros(len(canaries))
    beginnings: list[F64] = []
    for count, played in enumerate(rounds):
        if on_progress is not None:
            on_progress("rounds scored", count, len(rounds))
        left, share = rest(played, others), played.phase.release.sampling.share
        noises = noises_of(left, played.published.update, played.noise_scale)
        beginnings.append(flattened(left)[:_COMPARED] / (played.noise_scale or 1.0))
        stack = stacked(contributions(played, canaries))
        ratio = ratios(stack, left, noises, mean=share / 2, variance=share / 2 * (1 - share / 2))
        total += np.logaddexp(np.log1p(-share), np.log(share) + ratio) if share < 1 else ratio
        if np.mean(flattened(played.published.update) == 0) > _MANY_ZEROS:
            total -= _SILENT * stack.silent(played.published.update)
    for first, second in rounds_alike(beginnings):
        pair = (rounds[first], beginnings[first]), (rounds[second], beginnings[second])
        total += _ratios_of_difference(*pair, canaries)
    if on_progress is not None:
        on_progress("rounds scored", len(rounds), len(rounds))
    return total


def exact_scores(rounds: Sequence[ObservedRound], targets: Canaries, others: Federation) -> F64:
    """Return each person's log likelihood ratio, given the coins of all other people.

    In two cases, `canary_scores` is used instead. First, if a cohort is drawn, the attacker does
    not know which of the other targets were drawn. Second, if people are very similar, the noise
    moves all scores together. Then their order would separate members from others, although no
    single score does.
    """
    coins = targets.coins.astype(np.float64)
    total, shared = np.zeros(len(coins)), np.zeros((len(coins), len(coins)))
    for played in rounds:
        if played.phase.release.sampling.share < 1:
            total += canary_scores([played], targets.people, others)
            continue
        stack = stacked(contributions(played, targets.people))
        noises = dict.fromkeys(played.published.update, played.noise_scale)
        gram, left = stack.gram(noises), rest(played, others)
        own = np.diag(gram)
        total += stack.against(left, noises) - gram @ coins + own * coins - own / 2
        shared += gram
    if _correlation(shared) > _MUCH_ALIKE:
        return canary_scores(rounds, targets.people, others)
    return total


def _correlation(gram: F64) -> float:
    deviations = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    count = len(gram)
    whole = float((gram / np.outer(deviations, deviations)).sum())
    return (whole - count) / max(count * (count - 1), 1)


def contributions(played: ObservedRound, people: Clients) -> list[Contribution]:
    """Return the bounded contribution that each person would send in this round."""
    send = sender(played.phase, played.told, played.round_index, played.clip_norm, people)
    return [send(people.take(np.array([k]))) for k in range(len(people))]


def rest(played: ObservedRound, others: Federation) -> dict[str, Leaf]:
    """Return the published sum minus the contributions of others, if the attacker may know them.

    Under Poisson sampling, each person is drawn independently, so the guarantee also holds against
    an attacker who knows which other people were drawn. It does not for a cohort of fixed size: who
    knows how many other people were drawn also knows whether the target was.
    """
    update = {name: np.asarray(leaf, np.float64) for name, leaf in played.published.update.items()}
    sampling = played.phase.release.sampling
    if sampling.law == "fixed" and sampling.share < 1:
        return update
    cohort = Cohort(played.people[played.people < others.n_clients], others.take)
    known = fastest(played.phase, played.told, cohort, played.round_index, played.clip_norm).update
    return {name: update[name] - np.asarray(known[name], np.float64) for name in update}


def noises_of(
    left: Mapping[str, Leaf], update: Mapping[str, Leaf], promised: float
) -> dict[str, float]:
    """Return the scale of the noise on each sum, as a robust estimate from the sum.

    Entries that were published as exactly 0 have no noise and are left out.
    """
    noises = {}
    for name, values in left.items():
        noised = np.ravel(values)[np.ravel(update[name]) != 0]
        scale = _scale(noised) if len(noised) >= _FEWEST else promised * (len(noised) > 0)
        noises[name] = max(scale, _LEAST_NOISE * promised, 1e-9)
    return noises


def ratios(
    stack: "Stack",
    sums: Mapping[str, Leaf],
    noises: Mapping[str, float],
    *,
    mean: float,
    variance: float,
) -> F64:
    """Return the log likelihood ratio of b_i = 1 against b_i = 0 for each person i, shape (m,).

    The sums are Wᵀb + noise, in units of the noise. The rows of W are the contributions. The
    entries of b are independent and have the given mean and variance v. Let G = W Wᵀ and p = W
    sums. The vector y = (I + vG)⁻¹ (p - G mean) has for each i the inner product of row i with the
    sums minus their mean, weighted by the inverse covariance of the sums. The vector g, the
    diagonal of (I + vG)⁻¹ G, has the inner product of row i with itself, with the same weights.
    Division by 1 - v g removes the variance of b_i from that covariance.
    """
    gram, product = stack.gram(noises), stack.against(sums, noises)
    inverse = np.linalg.inv(np.eye(stack.size) + gram * variance)
    gain = np.einsum("ij,ji->i", inverse, gram)
    left = np.maximum(1 - variance * gain, 1e-9)
    weight = gain / left
    ratio = inverse @ (product - gram @ np.full(stack.size, mean)) / left + weight * mean
    return np.asarray(ratio - weight / 2)


def rounds_alike(noises: Sequence[F64]) -> list[tuple[int, int]]:
    """Return the pairs of rounds with the same noise, beginning with the smallest difference.

    The difference of two independent noises of scale 1 has scale √2, and other parts of the sums
    only increase it. If both noises are smaller, their difference still has a larger scale than
    each.
    """
    pairs = []
    for first, second in combinations(range(len(noises)), 2):
        size = min(len(noises[first]), len(noises[second]))
        ours, theirs = noises[first][:size], noises[second][:size]
        change = _scale(ours - theirs)
        if size >= _FEWEST and change < _ALIKE * min(1.0, math.hypot(_scale(ours), _scale(theirs))):
            pairs.append((change, first, second))
    return [(first, second) for _, first, second in sorted(pairs)[:_MOST_PAIRS]]


def _ratios_of_difference(
    first: tuple[ObservedRound, F64], second: tuple[ObservedRound, F64], canaries: Clients
) -> F64:
    """Return the log likelihood ratios from the difference of two rounds with the same noise."""
    size = min(len(first[1]), len(second[1]))
    ours, theirs = (
        [
            beginning(sent, size) / (played.noise_scale or 1.0)
            for sent in contributions(played, canaries)
        ]
        for played, _ in (first, second)
    )
    changes = [Contribution(dense={"d": a - b}) for a, b in zip(ours, theirs, strict=True)]
    left = {"d": first[1][:size] - second[1][:size]}
    return ratios(stacked(changes), left, {"d": _SHARED}, mean=0.5, variance=0.25)


def _scale(values: F64) -> float:
    """Return the standard deviation of normal values, from the median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values)))) / 0.6745


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """Contributions of m people, by the name of the sum they are added to.

    `flat` has sparse matrices of shape (m, size of the sum). `outer` and `triangle` have dense
    matrices of shape (m, n), with the vector of each person.
    """

    size: int
    flat: Mapping[str, sp.csr_array]
    outer: Mapping[str, F64]
    triangle: Mapping[str, F64]

    def gram(self, noises: Mapping[str, float]) -> F64:
        """Return the inner products of all pairs of contributions, shape (m, m).

        Each sum is measured in units of its own noise.
        """
        total = np.zeros((self.size, self.size))
        for name, rows in self.flat.items():
            total += (rows @ rows.T).toarray() / noises[name] ** 2
        for name, vectors in self.outer.items():
            total += (vectors @ vectors.T) ** 2 / noises[name] ** 2
        for name, vectors in self.triangle.items():
            products = (vectors @ vectors.T) ** 2 + vectors**2 @ (vectors**2).T
            total += products / 2 / noises[name] ** 2
        return total

    def against(self, sums: Mapping[str, Leaf], noises: Mapping[str, float]) -> F64:
        """Return the inner product of each contribution with the given sums, shape (m,)."""
        total = np.zeros(self.size)
        for name, rows in self.flat.items():
            total += rows @ np.ravel(np.asarray(sums[name], np.float64)) / noises[name] ** 2
        for name, vectors in self.outer.items():
            matrix = np.asarray(sums[name], np.float64) / noises[name] ** 2
            total += ((vectors @ matrix) * vectors).sum(1)
        for name, vectors in self.triangle.items():
            matrix = np.zeros((vectors.shape[1], vectors.shape[1]))
            matrix[np.triu_indices(len(matrix))] = np.asarray(sums[name], np.float64)
            total += ((vectors @ matrix) * vectors).sum(1) / noises[name] ** 2
        return total

    def silent(self, sums: Mapping[str, Leaf]) -> F64:
        """Return how many entries that each person changes are 0 in `sums`, shape (m,)."""
        total = np.zeros(self.size)
        for name, rows in self.flat.items():
            touched = rows.copy()
            touched.data = np.asarray(touched.data != 0, np.float64)
            total += touched @ np.ravel(np.asarray(sums[name]) == 0).astype(np.float64)
        return total


def stacked(contributions: Sequence[Contribution]) -> Stack:
    """Return contributions with the same names and shapes as one `Stack`."""
    first = contributions[0]
    flat: dict[str, sp.csr_array] = {}
    for name in first.dense:
        rows = np.stack([np.ravel(np.asarray(each.dense[name])) for each in contributions])
        flat[name] = sp.csr_array(rows.astype(np.float64))
    for name, example in first.rows.items():
        width = int(np.prod(np.shape(example.values)[1:], dtype=np.int64))
        parts = [each.rows[name] for each in contributions]
        columns = [
            (np.asarray(part.ids)[:, None] * width + np.arange(width)).ravel() for part in parts
        ]
        values = [np.ravel(np.asarray(part.values, np.float64)) for part in parts]
        ends = np.concatenate([[0], np.cumsum([len(part) for part in values])])
        flat[name] = sp.csr_array(
            (np.concatenate(values), np.concatenate(columns), ends),
            shape=(len(parts), example.size * width),
        )
    return Stack(
        size=len(contributions),
        flat=flat,
        outer={name: _vectors(contributions, "outer", name) for name in first.outer},
        triangle={name: _vectors(contributions, "triangle", name) for name in first.triangle},
    )


def beginning(contribution: Contribution, size: int) -> F64:
    """Return the first `size` entries of a contribution, in the order in which noise is drawn."""
    total: dict[str, Leaf] = {}
    add_to(total, contribution)
    return flattened(total)[:size]


def _vectors(contributions: Sequence[Contribution], part: str, name: str) -> F64:
    return np.stack([np.asarray(getattr(each, part)[name], np.float64) for each in contributions])
