"""Mistakes of a training that an audit finds in internal data, which no attacker sees.

An audit looks for these mistakes:

- What the server sends or releases does not come from published sums alone.
- One person's contribution is larger than its bound.
- The noise is not what the ledger says, or is used again.
- Cohorts (the people of a round) are not drawn as the ledger says.
- The ledger does not count all sums.

The thresholds are so wide that a correct training has a finding less than once in a million audits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from privrec.algorithms.recipes import recipe_named
from privrec.attacks.chances import (
    binomial_squares,
    common_law,
    few_places,
    in_common,
    share_bound,
    tails,
)
from privrec.attacks.trial import (
    Canaries,
    ObservedRound,
    Trial,
    by_phase,
    flattened,
    odd_people,
)
from privrec.core.phase import Cohort, Phase, ServerState, Stage, Told
from privrec.core.round import fastest
from privrec.data.clients import Clients, joined, nobody
from privrec.data.federation import Federation
from privrec.privacy.aggregate import grid_step
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import secure
from privrec.seeds import rng
from privrec.types import F64, BoolArray, IntArray, Leaf, Params

_PEOPLE_PER_KIND = 4
"""How many real people are tried: this many first ones, and this many with the most lines. Twice as
many canaries are tried."""
_SAMPLE = 300
_SLACK = 1e-3
_DEVIATIONS = 8.0
_CHANCE, _CHANCE_OF_ALL = 1e-12, 1e-9
"""The probability of a false finding: in one test of the noise, and in all tests of one kind."""
_COMPARED, _BEGIN, _FEWEST = 50_000, 500, 50
_PLACES = 500
"""This many of the largest noises are compared in any order. Their tail probabilities are divided
into as many equally likely bins. More bins would be as narrow as the grid of the published sums."""
_MISSING = 0.01
"""This number has two uses. It is the share of entries that may lack noise. And an entry is tested
for that only if the step of 32-bit floats at its size, in units of the noise, is at most this
number."""
_COARSE = 0.05
"""A noise is compared only if the step of its entry (of the grid, or of 32-bit floats) is at most
this share of the noise's scale."""
_ALIKE = 0.9
_LARGEST = 600.0
"""The largest absolute value of Laplace noise of scale 1. Beyond it, probabilities underflow."""
_FIRST = np.zeros(1, np.int64)
_MOST, _PAIRED = 20_000, 4000
"""Of a population of more than `_MOST` people, half of `_MOST` are the first ones and half the last
ones. Of these, `_PAIRED` random people are tested for being in the same rounds."""


def findings_of(trial: Trial, canaries: Canaries, others: Federation) -> list[str]:
    """Return the mistakes of a training. Without a guarantee, only the budget is checked."""
    if not trial.ledger.is_private:
        return over_budget(trial)
    task, rounds = trial.task, trial.rounds
    unseen = replace(task, federation=without_data(task.federation))
    stages = recipe_named(task.settings.recipe).plan(unseen).stages()
    return [
        *untold(stages, rounds, trial.params),
        *over_bound(rounds, canaries.people, others),
        *other_bound(rounds),
        *wrong_noise(rounds),
        *noise_again(rounds),
        *same_noise(rounds),
        *wrong_count(rounds),
        *(same_generator() if task.settings.budget.draws_in_secret else []),
        *too_many(rounds),
        *drawn_together(rounds),
        *drawn_again(rounds),
        *uncounted(rounds, trial.ledger),
        *over_budget(trial),
    ]


# --- what was told and released -----------------------------------------------------------------


def untold(stages: Sequence[Stage], rounds: Sequence[ObservedRound], released: Params) -> list[str]:
    """Return what was sent or released that cannot be computed from published sums alone.

    `stages` are the stages of the run, made from a data set without data (`without_data`). With
    them, the server's part of the training is repeated from the published sums. If it then sends or
    releases other values, those of the run came from people's data by another way than noised sums.
    """
    findings: list[str] = []
    named = {stage.name: stage for stage in stages}
    state: ServerState | None = None
    playing = ""
    for played in rounds:
        stage, published = named[played.phase.name], played.published
        try:
            if not isinstance(stage, Phase):
                raise TypeError(f"{stage.name} is not a phase")
            if state is None or stage.name != playing:
                state = stage.start(None if state is None else state.params)
                playing = stage.name
            findings += _differences(played.name, played.told, stage.tell(state))
            after = stage.absorb(state, published)
            state = replace(
                after, round_index=played.round_index + 1, clip_norm=published.clip_norm
            )
        except Exception as error:  # The run took the same step, with people's data.
            fault = f"the server cannot go on from published sums alone ({error})"
            return [*findings, f"{played.name}: {fault}"]
    if state is not None:
        findings += _differences("the released model", released, state.params)
    return findings


def without_data(federation: Federation) -> Federation:
    """Return a data set of the same number of people, without any lines or features."""
    return replace(federation, take=lambda people: nobody(federation.schema, len(people)))


def _differences(where: str, said: Params | Told, again: Params | Told) -> list[str]:
    return [
        f"{where}: {name!r} was computed from people's data, not from published sums alone"
        for name in sorted(said.keys() | again.keys())
        if not _same(said.get(name), again.get(name))
    ]


def _same(leaf: Leaf | None, other: Leaf | None) -> bool:
    if leaf is None or other is None:
        return leaf is other
    if np.shape(leaf) != np.shape(other):
        return False
    return bool(np.allclose(np.asarray(leaf), np.asarray(other), rtol=1e-5, atol=1e-7))


# --- the bound on what one person adds ----------------------------------------------------------


def over_bound(rounds: Sequence[ObservedRound], canaries: Clients, others: Federation) -> list[str]:
    """Return the phases in which one person can add more to the sums than the bound allows.

    The code of the training computes the sums, for the first and the last round of each phase. The
    people tried are some canaries, people with unusual data (`odd_people`), some real people, and
    the people with the most lines in a sample. The sum of a group of canaries and odd people must
    equal the sum of their separate contributions; otherwise a person can add more in a group than
    alone.
    """
    sample = np.arange(min(_SAMPLE, others.n_clients))
    lines = others.take(sample)
    most = sample[np.argsort(-lines.sizes, kind="stable")[:_PEOPLE_PER_KIND]]
    # A phase may leave out rare items, so the most popular ones come first.
    items = np.argsort(-np.bincount(lines.item, minlength=others.n_items), kind="stable")
    odd = odd_people(canaries.take(_FIRST), items)
    company = joined([canaries.take(np.arange(2 * _PEOPLE_PER_KIND)), *odd.values()])
    kinds = [*["like others"] * (2 * _PEOPLE_PER_KIND), *odd]
    real = np.unique(np.concatenate([sample[:_PEOPLE_PER_KIND], most]))
    findings = []
    for played in _ends(rounds):
        lengths = {"of the data": max(_length(played, _sum(played, others.take, k)) for k in real)}
        left = _sum(played, company.take, *range(len(company)))
        for k, kind in enumerate(kinds):
            alone = _sum(played, company.take, k)
            lengths[kind] = max(_length(played, alone), lengths.get(kind, 0.0))
            left -= alone
        kind, longest = max(lengths.items(), key=lambda item: item[1])
        if not longest <= played.clip_norm * (1 + _SLACK):
            findings.append(
                f"{played.name}: one person adds a vector of length {longest:.4g}, above the bound"
                f" {played.clip_norm:.4g} that the noise is made for: a person {kind}"
            )
        if not _length(played, left) <= played.clip_norm * len(company) * _SLACK:
            findings.append(
                f"{played.name}: what people add together is not the sum of what each adds"
            )
    return findings


def other_bound(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the first round in which the devices' bound was larger than the bound of the noise."""
    for played in rounds:
        kept, made_for = played.kept_norm, played.clip_norm
        if played.is_private and kept > made_for * (1 + _SLACK):
            fault = f"devices keep to the bound {kept:.4g}, the noise is made for {made_for:.4g}"
            return [f"{played.name}: {fault}"]
    return []


def _ends(rounds: Sequence[ObservedRound]) -> Iterator[ObservedRound]:
    for played in by_phase([each for each in rounds if each.is_private]).values():
        yield played[0]
        if len(played) > 1:
            yield played[-1]


def _sum(played: ObservedRound, take: Callable[[IntArray], Clients], *people: int) -> F64:
    cohort = Cohort(np.array(people, np.int64), take)
    total = fastest(played.phase, played.told, cohort, played.round_index, played.clip_norm)
    return flattened(total.update)


def _length(played: ObservedRound, vector: F64) -> float:
    # By the mechanism, because the aggregator's own `norm` may be the mistake.
    order = 1 if played.is_laplace else 2
    # NaN is longer than any bound.
    return float(np.nan_to_num(np.linalg.norm(vector, order), nan=np.inf))


# --- the noise ----------------------------------------------------------------------------------


def wrong_noise(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the rounds whose noise is not independent, or not of the promised kind and scale."""
    findings, before = [], np.zeros(0)
    for played in rounds:
        if not played.is_private:
            continue
        scale = played.noise_scale
        law = stats.laplace if played.is_laplace else stats.norm
        for name, values in played.noise.items():
            noise = np.ravel(values).astype(np.float64) / scale
            if _is_of_another_law(noise, law) or too_small(noise, laplace=played.is_laplace):
                findings.append(
                    f"{played.name}: the noise on {name!r} is not {law.name} of scale {scale:.4g}"
                )
            if _is_missing(noise, np.ravel(played.published.update[name]) / scale):
                findings.append(f"{played.name}: entries of {name!r} have no noise")
        whole = _as_normal(played)[:_COMPARED]
        if len(whole) >= _FEWEST and _most_alike(whole, whole, itself=True) > _DEVIATIONS:
            findings.append(f"{played.name}: the noise repeats itself")
        if min(len(whole), len(before)) >= _FEWEST and _most_alike(whole, before) > _DEVIATIONS:
            findings.append(f"{played.name}: the noise is that of the round before")
        before = whole
    return findings


def _is_of_another_law(noise: F64, law: stats.rv_continuous) -> bool:
    if len(noise) < _FEWEST:
        return False
    return bool(stats.kstest(noise[:_COMPARED], law.cdf).pvalue < _CHANCE)


def _is_missing(noise: F64, published: F64) -> bool:
    """Return whether too many entries have no noise; by chance, about one in 10,000 has none."""
    fine = noise[np.spacing(np.abs(published).astype(np.float32)) <= _MISSING]
    zeros = np.count_nonzero(fine == 0)
    return bool(stats.binom.sf(zeros - 1, len(fine), _MISSING) < _CHANCE)


def noise_again(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the first round whose noise begins like the noise of an earlier round.

    A round whose noise ends with the reversed end of an earlier one is returned too. The noise may
    be shifted, and multiplied by a number.
    """
    compared, firsts, lasts = list[ObservedRound](), list[F64](), list[F64]()
    for played in rounds:
        noise = _as_normal(played) if played.is_private else np.zeros(0)
        if len(noise) >= _FEWEST:
            compared.append(played)
            firsts.append(noise[:_BEGIN].copy())  # A view would keep all of the noise.
            lasts.append(noise[-_BEGIN:].copy())
    if len(compared) < 2:
        return []
    size = min(map(len, firsts))
    begins = _spectra([noise[:size] for noise in firsts])
    ends = _spectra([noise[-size:] for noise in lasts])
    # The correlation of independent noises has a standard deviation of about 1/√size, and is at
    # most 1.
    least = min(_DEVIATIONS / math.sqrt(size), _ALIKE)
    for second in range(1, len(compared)):
        ahead, back = begins[:second] * begins[second].conj(), ends[:second] * begins[second]
        most = np.maximum(*(np.abs(np.fft.irfft(products)).max(1) for products in (ahead, back)))
        if most.max() > least:
            first = compared[int(np.argmax(most))]
            return [f"{compared[second].name}: the noise is that of {first.name}"]
    return []


def _spectra(noises: Sequence[F64]) -> npt.NDArray[np.complex128]:
    """Return the spectrum of each noise, scaled to length 1 and zero-padded for any shift."""
    whole = np.stack(noises)
    whole /= np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-30)
    return np.fft.rfft(whole, 2 * whole.shape[1])


class Largest(NamedTuple):
    """The largest absolute values among `size` noises.

    `chances` has for each value the probability that a noise is larger in absolute value.
    """

    size: int
    chances: F64

    def places(self, size: int) -> IntArray:
        """Return the bin of each value that would be among the largest of `size` noises."""
        share = min(1.0, _PLACES / max(size, 1))
        among = self.chances[self.chances < share]
        return np.asarray(among * (_PLACES / share), np.int64)


def same_noise(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the rounds in which values of the noise occur again, in any order and with any sign.

    Values are compared within one sum, between two sums of a round, and between any two rounds.
    """
    rounds = [played for played in rounds if played.is_private]
    wholes, findings = list[Largest](), list[str]()
    for played in rounds:
        names, parts = zip(*sorted(largest_noises(played).items()), strict=True)
        size = sum(part.size for part in parts)
        wholes.append(Largest(size, np.concatenate([part.chances for part in parts])))
        if any(_repeats(part, len(rounds) * (1 + len(parts))) for part in (*parts, wholes[-1])):
            findings.append(f"{played.name}: the noise repeats itself in some order")
        pair = _shared(parts, len(rounds))
        if pair is not None:
            first, second = (names[k] for k in pair)
            findings.append(
                f"{played.name}: the noise on {second!r} is that on {first!r} in some order"
            )
    pair = _shared(wholes, 1)
    if pair is not None:
        first, second = (rounds[k].name for k in pair)
        findings.append(f"{second}: the noise is that of {first} in some order")
    return findings


def _repeats(noises: Largest, times: int) -> bool:
    """Return whether too many values are equal, given that `times` such tests are made."""
    places = noises.places(noises.size)
    return few_places(len(places), _PLACES, len(np.unique(places))) * times < _CHANCE_OF_ALL


def _shared(several: Sequence[Largest], times: int) -> tuple[int, int] | None:
    """Return the first two that share too many values, given `times` groups of such tests."""
    order = sorted(range(len(several)), key=lambda k: several[k].size)
    pairs = times * len(order) * (len(order) - 1) / 2
    hit, counts, size = np.zeros((0, _PLACES), np.float32), np.zeros(0, np.int64), -1
    for number, k in enumerate(order):
        if several[k].size != size:  # A pair uses the bins of its larger member.
            size = several[k].size
            hit = np.zeros((len(order), _PLACES), np.float32)
            for row, j in enumerate(order):
                hit[row, several[j].places(size)] = 1.0
            counts = hit.sum(1).astype(np.int64)
        common = (hit[:number] @ hit[number]).astype(np.int64)
        chances = in_common(_PLACES, int(counts[number]), counts[:number], common)
        if number and chances.min() * pairs < _CHANCE_OF_ALL:
            first, second = sorted((order[int(np.argmin(chances))], k))
            return first, second
    return None


def largest_noises(played: ObservedRound) -> dict[str, Largest]:
    """Return the largest noises on each sum of a round.

    Published numbers lie on a grid. A random part of the grid step is added to each noise, so that
    the grid alone makes no two values equal. These parts are the same in each audit.
    """
    scale, largest = played.noise_scale, {}
    draw = rng(0, played.round_index, "audited noise")
    for name, leaf in played.noise.items():
        noise = np.ravel(np.asarray(leaf, np.float64))
        published = np.ravel(np.asarray(played.published.update[name], np.float32))
        step = np.maximum(np.spacing(np.abs(published)), grid_step(scale))
        moved = noise + step * (draw.random(len(noise)) - 0.5)
        size = np.abs(moved[step <= _COARSE * scale]) / scale
        chances = np.exp(-size) if played.is_laplace else 2 * stats.norm.sf(size)
        largest[name] = Largest(len(size), chances[chances < _PLACES / max(len(size), 1)])
    return largest


def _as_normal(played: ObservedRound) -> F64:
    """Return the noise of a round as standard normal values, in the order in which it is added.

    Laplace noise is mapped to normal values, because products of Laplace values are more often
    large.
    """
    noise = flattened(played.noise) / played.noise_scale
    if not played.is_laplace:
        return noise
    size = np.minimum(np.abs(noise), _LARGEST)
    return np.asarray(np.sign(noise) * stats.norm.isf(stats.laplace.sf(size)), np.float64)


def too_small(noise: F64, *, laplace: bool) -> bool:
    """Return whether the noise is smaller than noise of scale 1, by its sum of squares or sizes.

    The sum of squares of n normal values has a chi-square distribution with n degrees of freedom.
    The sum of n absolute Laplace values has a gamma distribution of shape n.
    """
    if laplace:
        chance = stats.gamma.cdf(np.abs(noise).sum(), len(noise))
    else:
        chance = stats.chi2.cdf(np.square(noise).sum(), len(noise))
    return bool(len(noise)) and bool(chance < _CHANCE)


def wrong_count(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the phases whose count of clipped updates has less noise than the ledger says."""
    noises: dict[str, list[float]] = defaultdict(list)
    for played in rounds:
        release = played.phase.release
        if played.count_noise is not None and release.quantile_multiplier:
            scale = release.quantile_multiplier * release.sampling.reach / 2
            noises[played.phase.name].append(played.count_noise / scale)
    return [
        f"{name}: the noise on the count of adaptive clipping is smaller than the ledger says"
        for name, of_rounds in noises.items()
        if too_small(np.array(of_rounds), laplace=False)
    ]


def same_generator() -> list[str]:
    """Return a finding if two secure noise generators begin with the same numbers."""
    if np.array_equal(secure().normal(8), secure().normal(8)):
        return ["the secure generator of noise gives the same numbers each time it is made"]
    return []


def _most_alike(noise: F64, other: F64, *, itself: bool = False) -> float:
    """Return the largest correlation of two noises, also reversed, in standard deviations.

    All shifts of one noise against the other are tried.
    """
    size = 2 ** math.ceil(math.log2(len(noise) + len(other)))
    first, second = np.fft.rfft(noise, size), np.fft.rfft(other, size)
    ahead, back = np.fft.irfft(first * np.conj(second), size), np.fft.irfft(first * second, size)
    if itself:
        ahead[0] = 0.0  # Without a shift, a noise equals itself.
        back /= math.sqrt(2)  # Each product occurs twice.
    most = max(float(np.max(np.abs(products))) for products in (ahead, back))
    shorter = min(np.linalg.norm(noise), np.linalg.norm(other))
    return most / max(float(shorter), 1e-30)


# --- the cohorts --------------------------------------------------------------------------------

# The ledger assumes that each person is drawn independently of all other people and rounds. So
# three things break the guarantee, even if each person has the correct probability: people are
# drawn in blocks, a cohort is drawn again, or a cohort avoids the people of earlier rounds.


def too_many(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the phases that drew a person twice in a round, or too many people for the ledger."""
    findings = []
    for name, played in by_phase(rounds).items():
        phase, cohorts = played[0].phase, [each.people for each in played]
        if any(len(np.unique(people)) < len(people) for people in cohorts):
            findings.append(f"{name}: somebody was drawn twice in one round")
        sampling, total = phase.release.sampling, sum(map(len, cohorts))
        asked = len(phase.population) * len(played)
        fixed = sampling.law == "fixed"
        chance = 1.0 if fixed else stats.binom.sf(total - 1, asked, sampling.share)
        if chance < _CHANCE_OF_ALL or (fixed and total > sampling.cohort * len(played)):
            findings.append(
                f"{name}: {total / len(played):.4g} people were drawn for a round, and the ledger"
                f" counts {asked * sampling.share / len(played):.4g}"
            )
    return findings


def drawn_together(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the phases in which people, or rounds, were not drawn independently of each other.

    In Poisson sampling, the number of people in a round and the number of rounds of a person must
    vary like binomial counts, and two people must not be in the same rounds more often than by
    chance. In any sampling, people at a fixed distance in the order of the data must not be drawn
    together more often than by chance.
    """
    findings = []
    for name, played in by_phase(rounds).items():
        sampling, users = played[0].phase.release.sampling, len(played[0].phase.population)
        if sampling.share >= 1:
            continue
        drawn, sizes = _drawn(played), np.array([len(np.unique(each.people)) for each in played])
        faults = [_neighbours(drawn, sampling.share)]
        if sampling.law == "poisson":
            faults += [
                _spread(sizes, users, sampling.share, "people in a round"),
                _spread(drawn.sum(0), len(played), sampling.share, "rounds of a person"),
                _same_rounds(drawn),
            ]
        findings += [f"{name}: {fault}" for fault in faults if fault]
    return findings


def drawn_again(rounds: Sequence[ObservedRound]) -> list[str]:
    """Return the rounds that share far more, or far fewer, people with other rounds than by chance.

    Any two rounds that draw from the same people are compared, also rounds of different phases. All
    pairs of consecutive rounds are tested together too.
    """
    groups: dict[bytes, list[ObservedRound]] = defaultdict(list)
    for played in by_phase(rounds).values():
        if played[0].phase.release.sampling.share < 1:
            groups[played[0].phase.population.tobytes()] += played
    findings = []
    for played in groups.values():
        drawn = _drawn(played)
        if fault := _same_people(played, drawn) or _in_a_row(played, drawn):
            findings.append(fault)
    return findings


def _same_people(rounds: Sequence[ObservedRound], drawn: BoolArray) -> str:
    sizes, wide = drawn.sum(1), drawn.astype(np.float32)
    pairs = len(rounds) * (len(rounds) - 1) / 2
    for second in range(1, len(rounds)):
        common = (wide[:second] @ wide[second]).astype(np.int64)
        chances = in_common(drawn.shape[1], int(sizes[second]), sizes[:second], common)
        first = int(np.argmin(chances))
        if chances[first] * pairs < _CHANCE_OF_ALL:
            expected = sizes[first] * sizes[second] / drawn.shape[1]
            return (
                f"{rounds[second].name}: {common[first]} of {sizes[second]} people were in"
                f" {rounds[first].name} too; {expected:.0f} are expected"
            )
    return ""


def _in_a_row(rounds: Sequence[ObservedRound], drawn: BoolArray) -> str:
    """Return a finding if consecutive rounds have too many, or too few, people in common."""
    users, sizes = drawn.shape[1], drawn.sum(1).tolist()
    kinds = Counter(pairwise(sizes))
    laws = [(common_law(users, *sizes), count) for sizes, count in kinds.items()]
    common = int((drawn[1:] & drawn[:-1]).sum())
    if not laws or min(tails(laws, common)) * 2 >= _CHANCE_OF_ALL:
        return ""
    expected = sum(count * first * next_ / users for (first, next_), count in kinds.items())
    return (
        f"{rounds[0].name} to {rounds[-1].name}: rounds in a row have {common} people in common;"
        f" {expected:.0f} are expected"
    )


def _spread(counts: np.ndarray, trials: int, share: float, what: str) -> str:
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    total = float(np.square(counts - mean).sum()) / variance
    more, less = tails([(binomial_squares(trials, share), len(counts))], total)
    if 2 * min(more, less) >= _CHANCE_OF_ALL:
        return ""
    times = total / len(counts)
    return f"the numbers of {what} spread {times:.3g} times as much as independent draws do"


def _same_rounds(drawn: BoolArray) -> str:
    """Return a finding if too many people were in exactly the same rounds as another person.

    The people who were in k of n rounds each have one of `n over k` equally likely sets of rounds.
    """
    some = rng(0, 0, "audited people").permutation(drawn.shape[1])[:_PAIRED]
    histories, people = np.unique(drawn[:, some], axis=1, return_counts=True)
    rounds = histories.sum(0)
    for number in np.unique(rounds).tolist():
        of_these = people[rounds == number]
        many = float(min(math.comb(len(drawn), number), 10**300))
        total = int(of_these.sum())
        if few_places(total, many, len(of_these)) * (len(drawn) + 1) < _CHANCE_OF_ALL:
            return (
                f"{total} people were in {number} of {len(drawn)} rounds each, and only"
                f" {len(of_these)} of them in different ones: some are drawn together"
            )
    return ""


def _neighbours(drawn: BoolArray, share: float) -> str:
    """Return a finding if people at some distance in the order of the data are drawn together.

    The pairs at one distance are divided into two halves, so that each person is in at most one
    pair of a half. If most people are drawn, those who are not drawn are tested instead.
    """
    chance, (rounds, people) = min(share, 1 - share) ** 2, drawn.shape
    spectrum = np.zeros(people + 1)
    for row in drawn if share <= 0.5 else ~drawn:
        spectrum += np.abs(np.fft.rfft(row, 2 * people)) ** 2
    pairs = np.fft.irfft(spectrum)[1 : people // 2 + 1]
    if not len(pairs):
        return ""
    most, at = round(float(pairs.max())), int(np.argmax(pairs)) + 1
    trials = math.ceil(rounds * people / 2)
    if 2 * len(pairs) * share_bound(trials, chance, most / 2) >= _CHANCE_OF_ALL:
        return ""
    what = "drawn" if share <= 0.5 else "left out"
    return (
        f"people {at} places apart were {what} together {most} times;"
        f" {chance * rounds * (people - at):.0f} are expected"
    )


def _drawn(rounds: Sequence[ObservedRound]) -> BoolArray:
    """Return whether each person was drawn in each round, shape (rounds, people)."""
    population, half = rounds[0].phase.population, _MOST // 2
    if len(population) > _MOST:
        population = np.concatenate([population[:half], population[-half:]])
    return np.stack([np.isin(population, each.people) for each in rounds])


# --- the ledger ---------------------------------------------------------------------------------


def uncounted(rounds: Sequence[ObservedRound], ledger: PrivacyLedger) -> list[str]:
    """Return the phases that published more sums than the ledger counts."""
    counted = dict(ledger.entries)
    made = Counter(played.phase.release for played in rounds)
    names = {played.phase.release: played.phase.name for played in rounds}
    return [
        f"{names[release]}: {times} such sums were published, and the ledger counts"
        f" {counted.get(release, 0)}"
        for release, times in made.items()
        if counted.get(release, 0) < times
    ]


def over_budget(trial: Trial) -> list[str]:
    """Return a finding if the ledger's epsilon is above the budget that was set."""
    config, ledger = trial.task.settings, trial.ledger
    budget, why = config.budget, "" if ledger.is_private else ": some sums have no noise"
    # The paper's first stage has no noise, so the budget is for the second stage alone.
    asked_for = bool(why) and getattr(config, "stage1", None) == "paper"
    if budget.epsilon is None or asked_for:
        return []
    if ledger.epsilon(budget.delta) <= budget.epsilon * (1 + 1e-9):
        return []
    return [f"the ledger's epsilon is above the budget of {budget.epsilon:g}{why}"]
