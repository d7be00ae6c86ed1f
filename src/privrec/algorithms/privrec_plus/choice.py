"""PrivRec+ chooses the settings that the user did not give, before a training without noise.

`evaluation.choosing` holds out a part of the training data. Each candidate (a model with other
settings) is trained on the rest and evaluated on the held-out part. The search changes one setting
after another (`_Search.best`). Candidates share their sums over people if only the computation
after the sums differs. A new value replaces the previous one if it is better by more than the
standard error of the difference.

A run under noise chooses nothing, because comparing candidates on raw data would cost privacy
budget. A federation chooses nothing either, because its terms fix all settings.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from privrec.algorithms.privrec_plus.rows import LARGEST, SCALE
from privrec.algorithms.privrec_plus.scoring import FREQUENCY, HOP_WEIGHT, OUT, RECENCY
from privrec.algorithms.privrec_plus.settings import PlusSettings, in_subspace, without_noise
from privrec.algorithms.recipe import Ahead, Candidates, Chosen, Plan, Task
from privrec.core.phase import Cohort, Phase, ServerState
from privrec.core.round import fastest
from privrec.core.scorer import Scorer
from privrec.data.federation import chunks
from privrec.evaluation.choosing import Trial, is_better, trial_of
from privrec.evaluation.metrics import KS
from privrec.evaluation.ranking import measure
from privrec.privacy.aggregate import Published
from privrec.types import F64, OnProgress, Params

KEYS = frozenset(
    {
        "rounds",
        "validation_share",
        "activity_power",
        "history_l2",
        "history_dropout",
        "history_rank",
        "popularity_discount",
        "hop_weight",
        "subspace_rank",
        "recency",
    }
)
"""The settings that may be chosen."""
_ACTIVITIES = (0.5, 1.0)
_RIDGES = ((5.0, 0.5), (20.0, 0.66), (50.0, 0.7), (200.0, 0.75), (500.0, 0.8))
_RIDGES_WITHIN = ((1.0, 0.2), (5.0, 0.5), (50.0, 0.7), (200.0, 0.75))
"""Pairs (ridge, dropout), from weak to strong. `_RIDGES_WITHIN` is for a subspace iteration."""
_RANKS = (512, 0)
_WHOLE = 5000
"""Upper limit for the items with which the full matrix (`history_rank` 0) is tried. With more
items, the model would have more than 200 MB. Chosen by hand."""
_DISCOUNTS = (0.0, 0.1, 0.2)
_HOPS = (0.15, 0.3, 1.0)
_RECENCIES = (1.0, 3.0, 10.0, 30.0)
_MORE_DIRECTIONS, _MOST_NUMBERS = 1024, 6 * 10**7
"""The search tries 1024 directions last, and only if the vectors of all columns then have at most
`_MOST_NUMBERS` numbers, which bounds the memory. Chosen by hand."""
_TRIAL_ROUNDS = 4
"""Upper limit for the rounds of a candidate's subspace iteration; a real run has more."""
_MOST_PAIRS = 2 * 10**9
"""Upper limit for the pairs of lines of the same person, added up over people, with which pair
scores are tried. With more pairs, one sum would take minutes. Chosen by hand."""
_USUAL_RIDGES = 2
"""The number of other ridges that the time forecast assumes."""
_EXPECTED = 12
"""The expected number of candidates, for the progress bar."""


class _Sums(NamedTuple):
    """The state before the last round of the sums, and what that round publishes."""

    state: ServerState
    published: Published


class _Candidate(NamedTuple):
    """Settings, the sums from which the tower is solved, and the resulting parameters."""

    settings: PlusSettings
    sums: _Sums | None
    params: Params


class _Best(NamedTuple):
    """The best candidate so far, and its metric for each person, shape (people,)."""

    candidate: _Candidate
    figures: F64

    def lean(self) -> "_Best":
        """Return the same candidate without its sums and vectors, to save memory.

        Parameters that a candidate with other vectors can use again are kept.
        """
        settings, _, params = self.candidate
        kept = {
            name: array
            for name, array in params.items()
            if name in (FREQUENCY, RECENCY) or name.startswith("hop/")
        }
        return self._replace(candidate=_Candidate(settings, None, kept))


def usual(task: Task[Any], given: Collection[str]) -> dict[str, Any]:
    """Return {"rounds": 0} if the run should have no training rounds, else {}.

    For a large catalogue, training rounds take most of the time and made the result worse on every
    large data set that was tried. If lines are split instead of people, no validation people can
    say after which round to stop.
    """
    settings = without_noise(task.settings)
    if settings is None or not settings.choose or "rounds" in given:
        return {}
    large = in_subspace(settings, task.federation.n_items)
    return {"rounds": 0} if large or task.protocol.name != "halves" else {}


def find(
    plan_of: Callable[[Task[Any]], Plan],
    task: Task[Any],
    given: Collection[str],
    on_progress: OnProgress,
) -> Chosen | None:
    """Return the settings that are best on the held-out part, or None if nothing may be chosen.

    Nothing may be chosen under noise, with `choose` off, if all keys are given, or with too few
    people.
    """
    if (search := _search(plan_of, task, given, on_progress)) is None:
        return None
    settings, trial = search.settings, search.trial
    usual_figures, best = search.best()
    found = best.candidate.settings.model_dump()
    before = settings.model_dump()
    keys = [key for key in type(settings).model_fields if key in KEYS]
    values = {key: found[key] for key in keys if found[key] != before[key]}
    line = _line(trial, values, usual_figures, best.figures)
    if not settings.rounds and "validation_share" not in given:
        # Without training rounds, no validation is needed, so validation people train, too.
        values["validation_share"] = 0.0
    on_progress("settings compared", 1, 1)
    return Chosen(values, line)


def ahead(
    plan_of: Callable[[Task[Any]], Plan], task: Task[Any], given: Collection[str]
) -> Ahead | None:
    """Return a forecast: the candidates that `find` will train, and the largest resulting run."""
    search = _search(plan_of, task, given, lambda *_: None)
    return None if search is None else search.ahead()


def _search(
    plan_of: Callable[[Task[Any]], Plan],
    task: Task[Any],
    given: Collection[str],
    on_progress: OnProgress,
) -> "_Search | None":
    settings = without_noise(task.settings)
    if settings is None or not settings.choose or set(given) >= KEYS:
        return None
    trial = trial_of(task.protocol, task.whole, task.split.train, task.split.validation)
    if trial is None:
        return None
    return _Search(plan_of, task, settings, trial, frozenset(given), on_progress)


def figures_on(trial: Trial, scorers: Mapping[str, Scorer]) -> F64:
    """Return the metric of each scorer for each person with test data, shape (scorers, people)."""
    found = measure(
        trial.view,
        trial.tested,
        scorers,
        n_items=trial.federation.n_items,
        candidates=trial.protocol.candidates,
    )
    each = [one.figures for one in found.values()]
    kinds = [one.recall if trial.protocol.name == "files" else one.hits for one in each]
    return np.stack([kind[:, KS.index(20)] for kind in kinds])


def _line(trial: Trial, values: Mapping[str, Any], before: F64, after: F64) -> str:
    """Return a line for the user: the chosen settings, and the metric before and after."""
    on = f"on {trial.what} ({len(after):,} people)"
    if not values:
        return f"chosen {on}: the usual settings, {trial.figure} {after.mean():.4f}"
    named = ", ".join(f"{key} = {value:g}" for key, value in values.items())
    figures = f"{trial.figure} {after.mean():.4f} instead of {before.mean():.4f}"
    return f"chosen {on}: {named}; {figures}"


@dataclass(slots=True)
class _Search:
    """Trains candidates and compares them on the held-out part."""

    plan_of: Callable[[Task[Any]], Plan]
    task: Task[Any]
    settings: PlusSettings
    trial: Trial
    given: frozenset[str]
    on_progress: OnProgress
    done: int = 0

    def best(self) -> tuple[F64, _Best]:
        """Return the metric of the initial settings for each person, and the best candidate."""
        best = self.looked_at(self.candidate(self.settings))
        usual_figures = best.figures
        best = self._better(best, self._others(best, "activity_power", _ACTIVITIES))
        best = self._ridge(best)
        if self._within(best.candidate.settings):
            best = self._better(best, self._discounts(best))
            best = self._better(best, self._hops(best))
        else:
            best = self._better(best, self._others(best, "history_rank", self._ranks))
        if self.trial.protocol.name == "leave-last":
            best = self._better(best, self._recencies(best))
        if self._within(best.candidate.settings):
            best = best.lean()
            best = self._better(best, self._directions(best))
        return usual_figures, best

    def ahead(self) -> Ahead:
        settings, free = self.settings, {key: key not in self.given for key in KEYS}
        within = self._within(settings)
        sums = 1 + (len(_ACTIVITIES) - 1) * free["activity_power"]
        solved = sums + _USUAL_RIDGES * free["history_l2"]
        looks = solved + len(_RECENCIES) * (self.trial.protocol.name == "leave-last")
        values: dict[str, Any] = {} if settings.rounds else {"validation_share": 0.0}
        if not within:
            ranks = len(self._ranks) * free["history_rank"]
            return Ahead([self._ahead(settings, 0, sums, solved + ranks, looks + ranks)], values)
        looks += (len(_DISCOUNTS) - 1) * free["popularity_discount"]
        found = [self._ahead(settings, 0, sums, solved, looks)]
        if free["hop_weight"] and not settings.hop_weight and self._pairs() <= _MOST_PAIRS:
            values["hop_weight"] = max(_HOPS)
            pairs = settings.model_copy(update={"hop_weight": max(_HOPS)})
            found.append(self._ahead(pairs, 2, 1, 1, len(_HOPS)))
        columns = (self._phases(settings)[1].accepts or {})[SCALE].shape[0] or 0
        if self._has_more(settings, columns):
            values["subspace_rank"] = _MORE_DIRECTIONS
            more = settings.model_copy(update={"subspace_rank": _MORE_DIRECTIONS})
            found.append(self._ahead(more, 0, 1, 1, 1)._replace(beside=False))
        return Ahead(found, values)

    def _ahead(
        self, settings: PlusSettings, first: int, sums: int, solved: int, looks: int
    ) -> Candidates:
        plan, trial = self.plan(settings), self.trial

        def look(params: Params, count: int) -> F64:
            some = replace(trial, tested=trial.tested[:count])
            return figures_on(some, {"": plan.ranker(params)})

        stages, people = plan.stages()[first : first + 2], len(trial.tested)
        return Candidates(plan, stages, sums, solved, looks, people, look, beside=True)

    @property
    def _ranks(self) -> tuple[int, ...]:
        return _RANKS if self.task.federation.n_items <= _WHOLE else _RANKS[:1]

    def _within(self, settings: PlusSettings) -> bool:
        return in_subspace(settings, self.task.federation.n_items)

    def plan(self, settings: PlusSettings) -> Plan:
        """Return the plan of a candidate's training, on the data without the held-out part."""
        few = min(settings.subspace_rounds, _TRIAL_ROUNDS)
        settings = settings.model_copy(update={"rounds": 0, "subspace_rounds": few})
        split = replace(self.task.split, train=self.trial.train)
        return self.plan_of(
            replace(self.task, settings=settings, federation=self.trial.federation, split=split)
        )

    def candidate(self, settings: PlusSettings, sums: _Sums | None = None) -> _Candidate:
        """Return the candidate with these settings; its sums are computed if none are given."""
        stages = self._phases(settings)[:2]
        sums = sums or self._sums(stages)
        last, state = stages[-1], sums.state
        if not self._within(settings):
            state = last.start(state.params)  # The shapes depend on the rank.
        return _Candidate(settings, sums, last.absorb(state, sums.published).params)

    def looked_at(self, candidate: _Candidate) -> _Best:
        return _Best(candidate, self._figures([candidate])[0])

    def _phases(self, settings: PlusSettings) -> list[Phase]:
        return [stage for stage in self.plan(settings).stages() if isinstance(stage, Phase)]

    def _sums(self, stages: Sequence[Phase]) -> _Sums:
        """Run all phases, and return the last round's published sum and the state before it."""
        params: Params | None = None
        for stage in stages:
            state = stage.start(params)
            for left in reversed(range(stage.rounds)):
                published = self._published(stage, state)
                if not left and stage is stages[-1]:
                    return _Sums(state, published)
                state = replace(stage.absorb(state, published), round_index=state.round_index + 1)
                del published  # It is as large as the state.
            params = state.params
        raise ValueError("there must be a phase to add up; got none")

    def _published(self, phase: Phase, state: ServerState) -> Published:
        cohort = Cohort(phase.population, self.trial.federation.take)
        total = fastest(phase, phase.tell(state), cohort, state.round_index, state.clip_norm)
        return Published(dict(total.update), state.clip_norm)

    def _figures(self, candidates: Sequence[_Candidate]) -> F64:
        scorers = {
            str(place): self.plan(one.settings).ranker(one.params)
            for place, one in enumerate(candidates)
        }
        figures = figures_on(self.trial, scorers)
        self.done += len(candidates)
        self.on_progress("settings compared", min(self.done, _EXPECTED - 1), _EXPECTED)
        return figures

    def _better(self, best: _Best, others: Iterator[_Candidate]) -> _Best:
        """Return the best of a candidate and some other candidates, trained one after another."""
        for other in others:
            (figures,) = self._figures([other])
            if is_better(figures, best.figures):
                best = _Best(other, figures)
        return best

    def _others(self, best: _Best, key: str, values: Sequence[float]) -> Iterator[_Candidate]:
        """Yield candidates with other values of a setting, or nothing if the user gave the setting.

        They share the sums of `best`, except for other weights of people (`activity_power`), which
        change the sums.
        """
        settings, shared = best.candidate.settings, key != "activity_power"
        for value in values:
            if key not in self.given and value != getattr(settings, key):
                changed = settings.model_copy(update={key: value})
                yield self.candidate(changed, best.candidate.sums if shared else None)

    def _ridge(self, best: _Best) -> _Best:
        """Return the candidate with the best ridge of the list.

        Weaker ridges are tried while they help. If none helps, stronger ridges are tried.
        """
        if {"history_l2", "history_dropout"} <= self.given:
            return best
        first = best
        for stronger in (False, True):
            while (step := self._next_ridge(best.candidate.settings, stronger)) is not None:
                found = self._better(best, iter([self.candidate(step, best.candidate.sums)]))
                if found is best:
                    break
                best = found
            if best is not first:
                break
        return best

    def _next_ridge(self, settings: PlusSettings, stronger: bool) -> PlusSettings | None:
        """Return the settings with the next ridge of the list, or None at its end.

        Settings that the user gave are not changed.
        """
        ways = [
            (l2, dropout)
            for l2, dropout in (_RIDGES_WITHIN if self._within(settings) else _RIDGES)
            if (l2 > settings.history_l2 if stronger else l2 < settings.history_l2)
        ]
        if "history_l2" in self.given or not ways:
            return None
        l2, dropout = ways[0] if stronger else ways[-1]
        if "history_dropout" in self.given:
            dropout = settings.history_dropout
        return settings.model_copy(update={"history_l2": l2, "history_dropout": dropout})

    def _discounts(self, best: _Best) -> Iterator[_Candidate]:
        """Yield candidates with other discounts of popular items: only item vectors are scaled."""
        settings, sums, params = best.candidate
        out = np.asarray(params[OUT])
        often = np.asarray(params[FREQUENCY], np.float64)[: len(out)]
        relative = np.where(often > 0, often / max(float(often.mean()), 1e-12), 1.0)
        for discount in _DISCOUNTS if "popularity_discount" not in self.given else ():
            if discount != settings.popularity_discount:
                scale = relative ** (settings.popularity_discount - discount)
                changed = settings.model_copy(update={"popularity_discount": discount})
                scaled = jnp.asarray(out * scale[:, None].astype(np.float32))
                yield _Candidate(changed, sums, {**params, OUT: scaled})

    def _hops(self, best: _Best) -> Iterator[_Candidate]:
        """Yield candidates with pair scores (`hop.py`). All weights share one sum over pairs."""
        settings, sums, params = best.candidate
        if "hop_weight" in self.given or settings.hop_weight or self._pairs() > _MOST_PAIRS:
            return
        for weight in _HOPS:
            changed = settings.model_copy(update={"hop_weight": weight})
            if HOP_WEIGHT not in params:
                phase = self._phases(changed)[2]
                state = phase.start(params)
                params = phase.absorb(state, self._published(phase, state)).params
            yield _Candidate(changed, sums, {**params, HOP_WEIGHT: jnp.float32(weight)})

    def _directions(self, best: _Best) -> Iterator[_Candidate]:
        """Yield the candidate with more directions, if it fits into memory; pair scores stay."""
        settings, _, kept = best.candidate
        if self._has_more(settings, len(kept[FREQUENCY])):
            more = settings.model_copy(update={"subspace_rank": _MORE_DIRECTIONS})
            params = {**self.candidate(more).params, **kept}
            yield _Candidate(more, None, params)  # No later candidate needs the large sums.

    def _has_more(self, settings: PlusSettings, columns: int) -> bool:
        """Return whether more directions may be tried and fit into the memory limit."""
        return (
            "subspace_rank" not in self.given
            and settings.subspace_rank < min(_MORE_DIRECTIONS, columns)
            and _MORE_DIRECTIONS * columns <= _MOST_NUMBERS
        )

    def _pairs(self) -> float:
        """Return the number of pairs of lines of the same person, added up over people."""
        take, pairs = self.trial.federation.take, 0.0
        for people in chunks(self.trial.train, 8192):
            sizes = take(people).sizes
            pairs += float((sizes[sizes <= LARGEST].astype(np.float64) ** 2).sum())
        return pairs

    def _recencies(self, best: _Best) -> Iterator[_Candidate]:
        settings, sums, params = best.candidate
        for recency in _RECENCIES if "recency" not in self.given else ():
            changed = settings.model_copy(update={"recency": recency})
            yield _Candidate(changed, sums, {**params, RECENCY: jnp.float32(recency)})
