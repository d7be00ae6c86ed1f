"""Scores of canaries by an attacker who sees every published sum and knows all but the coins.

In a round, the sum is u = Σ b_i c_i + others + noise, with b_i = 1 for the canaries who took part.
The attacker knows each contribution c_i, because what devices are told is public, and what the
others add, as far as the guarantee covers that. The scores are log likelihood ratios
for b_i = 1 against b_i = 0, with the other canaries as one more source of noise.

Any score is allowed in an audit, as long as it is computed from what was published. So the attacker
also looks for mistakes: entries without noise, and rounds that share theirs.

The strongest attacker: sees every published sum, and knows all data and who else took part.

People toss a coin whether they take part. For each, the attacker takes away from the sums what all
others added. With everybody in every round, what is left is her contribution or nothing, plus the
noise. Its likelihood ratio is the best test that there is, so with Gaussian noise it lies on the
curve that the ledger allows. Several releases of the same people are several looks at one coin.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from privrec.algorithms.recipes import configure, prepare
from privrec.attacks.canaries import Canaries, Stack, beginning, flattened, stacked, with_canaries
from privrec.attacks.roc import Scores, measured
from privrec.attacks.server import read_off
from privrec.attacks.watch import Seen, law_of, try_out
from privrec.core.bound import bounded
from privrec.core.contribution import Contribution, shapes_of
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import Clients
from privrec.data.federation import Federation, part_of
from privrec.privacy.ledger import PrivacyLedger, best_area, best_curve
from privrec.runs.loop import train
from privrec.seeds import rng
from privrec.types import F64, Leaf, OnProgress

_LEAST_NOISE = 1e-3
"""The least noise that the attacker reckons with, relative to what is promised."""
_MANY_ZEROS = 0.01
"""Noise on a grid is exactly 0 about once in 10,000 entries. Above this share, some have none."""
_SILENT = 1e3
_COMPARED = 20_000
"""Of so many entries of each round the attacker compares the noise with that of other rounds."""
_ALIKE, _FEWEST = 0.7, 50
_MOST_PAIRS = 3
_SHARED = 0.1
"""The noise in the difference of two rounds that share theirs, relative to the noise of one."""


class Belief(NamedTuple):
    """The mean and the variance of how often each contribution is in a sum, shape (m,) each."""

    mean: F64
    variance: F64

    @classmethod
    def of(cls, size: int, mean: float, variance: float) -> "Belief":
        """Return the same mean and variance for all."""
        return cls(np.full(size, mean), np.full(size, variance))


def canary_scores(
    seen: Sequence[Seen],
    canaries: Clients,
    others: Federation,
    on_progress: OnProgress | None = None,
) -> F64:
    """Return the score of each canary, higher for those who seem to have taken part.

    `others` are all other people who train.
    """
    total = np.zeros(len(canaries))
    noises: list[F64] = []
    # Volunteers gave up the guarantee for their phase.
    seen = [one for one in seen if not one.phase.volunteers]
    for place, one in enumerate(seen):
        if on_progress is not None:
            on_progress("rounds scored", place, len(seen))
        update = one.published.update
        sent, left = contributions(one, canaries), rest(one, others)
        noises.append(flattened(left)[:_COMPARED] / (one.noise_scale or 1.0))
        share = one.phase.release.sampling.share
        belief = Belief.of(len(sent), share / 2, share / 2 * (1 - share / 2))
        ratio = ratios(stacked(sent), left, noises_of(left, update, one.noise_scale), belief)
        total += np.logaddexp(np.log1p(-share), np.log(share) + ratio) if share < 1 else ratio
        if _share_of_zeros(update) > _MANY_ZEROS:
            total -= _SILENT * stacked(sent).silent(update)
    for first, second in alike(noises):
        total += _difference(seen[first], seen[second], noises[first], noises[second], canaries)
    if on_progress is not None:
        on_progress("rounds scored", len(seen), len(seen))
    return total


def contributions(one: Seen, people: Clients) -> list[Contribution]:
    """Return what each person's device sends in a round if she is asked, bounded."""
    device = one.phase.device
    nobody = people.take(np.zeros(1, np.int64))
    nobody = nobody.keep(np.zeros(len(nobody.item), np.bool_))
    expected = shapes_of(device.contribute(one.told, nobody, one.round_index))
    if expected is None:
        raise ValueError(f"{one.phase.name}: `contribute` returns an unsound contribution")
    norm = one.phase.aggregator.norm
    return [
        bounded(
            device.contribute(one.told, people.take(np.array([k])), one.round_index),
            one.clip_norm,
            norm,
            expected=expected,
        ).contribution
        for k in range(len(people))
    ]


def rest(one: Seen, others: Federation) -> dict[str, Leaf]:
    """Return the published sum without what the other people added, as far as it may be known.

    Under Poisson sampling everybody is drawn independently. So the guarantee also holds against an
    attacker who knows which other people were drawn. In a cohort of a fixed size, knowing all
    others is knowing the last one.
    """
    update = {name: np.asarray(a, np.float64) for name, a in one.published.update.items()}
    sampling = one.phase.release.sampling
    if sampling.law == "fixed" and sampling.share < 1:
        return update
    cohort = Cohort(one.people[one.people < others.n_clients], others.take)
    known = fastest(one.phase, one.told, cohort, one.round_index, one.clip_norm).update
    return {name: update[name] - np.asarray(known[name], np.float64) for name in update}


def noises_of(
    left: Mapping[str, Leaf], update: Mapping[str, Leaf], promised: float
) -> dict[str, float]:
    """Return the scale of each sum's noise as the attacker measures it; outliers do not count.

    What was published as exactly 0 has no noise; it tells nothing about the noise of the others.
    """
    noises = {}
    for name, values in left.items():
        noised = np.ravel(values)[np.ravel(update[name]) != 0]
        # Few entries say little about their noise.
        measured = _scale(noised) if len(noised) >= _FEWEST else promised * (len(noised) > 0)
        noises[name] = max(measured, _LEAST_NOISE * promised, 1e-9)
    return noises


def ratios(
    stack: Stack, sums: Mapping[str, Leaf], noises: Mapping[str, float], belief: Belief
) -> F64:
    """Return log likelihood ratios of 1 against 0 for each coefficient, shape (m,).

    The sums are Wᵀb + noise, with the contributions as rows of W, and b has independent entries of
    the believed mean and variance V. With G = W Wᵀ and p = W sums, in units of noise, the vector
    y = (I + GV)⁻¹ (p - G mean) and g, the diagonal of (I + GV)⁻¹ G, have for each i the product of
    its row with the rest of the sums, and with itself, weighted by the inverse covariance of the
    sums. Dividing by 1 - v g takes its own variance out of that covariance.
    """
    gram, product = stack.gram(noises), stack.against(sums, noises)
    inverse = np.linalg.inv(np.eye(stack.size) + gram * belief.variance)
    gain = np.einsum("ij,ji->i", inverse, gram)
    left = np.maximum(1 - belief.variance * gain, 1e-9)
    weight = gain / left
    found = inverse @ (product - gram @ belief.mean) / left + weight * belief.mean
    return np.asarray(found - weight / 2)


def alike(noises: Sequence[F64]) -> list[tuple[int, int]]:
    """Return the pairs of rounds that share their noise, the most alike first.

    The difference of two independent noises of scale 1 has scale √2, whatever else is in the sums,
    and that of two smaller ones is still larger than each.
    """
    found = []
    for first, second in combinations(range(len(noises)), 2):
        size = min(len(noises[first]), len(noises[second]))
        one, other = noises[first][:size], noises[second][:size]
        change = _scale(one - other)
        if size >= _FEWEST and change < _ALIKE * min(1.0, math.hypot(_scale(one), _scale(other))):
            found.append((change, first, second))
    return [(first, second) for _, first, second in sorted(found)[:_MOST_PAIRS]]


def _scale(values: F64) -> float:
    """Return the standard deviation of normal values; outliers do not count."""
    return float(np.median(np.abs(values - np.median(values)))) / 0.6745


def _difference(one: Seen, other: Seen, noise: F64, other_noise: F64, canaries: Clients) -> F64:
    """Return the ratios from the difference of two rounds, in which shared noise cancels."""
    size = min(len(noise), len(other_noise))
    parts = [
        [beginning(c, size) / (seen.noise_scale or 1.0) for c in contributions(seen, canaries)]
        for seen in (one, other)
    ]
    changes = [Contribution(dense={"d": a - b}) for a, b in zip(*parts, strict=True)]
    left = {"d": noise[:size] - other_noise[:size]}
    belief = Belief.of(len(changes), 0.5, 0.25)
    return ratios(stacked(changes), left, {"d": _SHARED}, belief)


def _share_of_zeros(update: Mapping[str, Leaf]) -> float:
    whole = flattened(update)
    return float(np.mean(whole == 0)) if len(whole) else 0.0


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
