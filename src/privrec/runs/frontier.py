"""Trains and tests several runs, and computes the curve of Hits@20 against epsilon.

Finished runs in the folder are not trained again. The noise of all runs comes from seeds, so that
the figures can be repeated. So these runs protect nobody.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privrec.algorithms.recipes import RECIPES, configure, prepare, recipe_named
from privrec.data.sources import load
from privrec.errors import SettingsError
from privrec.evaluation.intervals import Difference
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.paper import PRINTED_HITS
from privrec.privacy.statement import epsilon_text
from privrec.runs import folder as records
from privrec.runs.api import open_run
from privrec.runs.compare import Row, above, average_hits, mean_interval, read_row
from privrec.runs.documents import Evaluation
from privrec.runs.evaluate import report_progress
from privrec.runs.figures import without_advice
from privrec.runs.loop import train_and_evaluate
from privrec.types import OnProgress

WITH_NOISE, WITHOUT = "dp-privrec-plus", "privrec-plus"
NO_NOISE = f"{WITHOUT}, ε = ∞"
_K = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Mean Hits@k over the seeds at one requested ε (None: no noise).

    `epsilon_of_mechanism` is the ε in the ledgers: the cost of such a run with secure noise.
    `interval` has the ends of the 95 % interval over people, by k. `above` is Hits@20 minus that of
    popularity, paired over people. `by_seed` has Hits@20 of each seed.
    """

    epsilon: float | None
    epsilon_of_mechanism: float | None
    hits: dict[str, float]
    seeds: int
    interval: dict[str, list[float]] = field(default_factory=dict)
    above: Difference | None = None
    by_seed: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The points, from the smallest ε to no noise, and other recommenders to compare with.

    `together` is the total ε of the mechanism if all runs with noise use the same people; None if
    no run has noise. `lines` has Hits@20 of the other recommenders. `warnings` name the runs that
    are not clearly better than a simple rule.
    """

    data: str
    delta: float
    together: float | None
    points: tuple[Point, ...]
    lines: dict[str, float]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the content of `frontier.json`."""
        return asdict(self)


def find_frontier(
    data: str,
    epsilons: Sequence[float],
    *,
    delta: float,
    seeds: Sequence[int],
    out: Path,
    on_progress: OnProgress | None = None,
) -> Frontier:
    """Return the curve; trains and evaluates the runs that the folder does not have yet.

    The folder then has one run folder for each ε and seed, and `frontier.json`.
    """
    if not epsilons or not all(epsilon > 0 for epsilon in epsilons):
        raise SettingsError(f"`epsilons` must be > 0, or inf; got {list(epsilons)}")
    check_seeds(seeds)
    wanted = sorted(set(epsilons))
    jobs = {
        place_of(out, epsilon, seed): Job(recipe=WITHOUT, seed=seed)
        if math.isinf(epsilon)
        else Job(recipe=WITH_NOISE, seed=seed, epsilon=epsilon, delta=delta)
        for epsilon in wanted
        for seed in seeds
    }
    runs = run_jobs(jobs, data, on_progress)
    frontier = Frontier(
        data=data,
        delta=delta,
        together=_together([place for place in jobs if jobs[place].epsilon is not None], delta),
        points=tuple(
            _point(epsilon, [read_row(place_of(out, epsilon, seed)) for seed in seeds])
            for epsilon in wanted
        ),
        lines=_lines(data, list(runs.values())),
        warnings=tuple(
            f"epsilon {epsilon:g}, seed {seed}: {line}"
            for epsilon in wanted
            for seed in seeds
            for line in without_advice(runs[place_of(out, epsilon, seed)].warnings)
        ),
    )
    text = json.dumps(frontier.as_json(), indent=2) + "\n"
    records.write_whole(out / "frontier.json", text.encode())
    return frontier


def _point(epsilon: float, group: Sequence[Row]) -> Point:
    runs, people = [row.evaluation for row in group], [row.people for row in group]
    spent = [run.privacy.epsilon_of_mechanism for run in runs]
    known = [one for one in spent if one is not None]
    is_known = all("popularity" in run.differences for run in runs)
    return Point(
        epsilon=None if math.isinf(epsilon) else epsilon,
        epsilon_of_mechanism=max(known) if len(known) == len(spent) else None,
        hits={str(k): hits for k, hits in average_hits(runs).items()},
        seeds=len(runs),
        interval={str(k): list(ends) for k, ends in mean_interval(runs, people).items()},
        above=above(group, "popularity")[_K] if is_known else None,
        by_seed=[run.hits[_K] for run in runs],
    )


def _lines(data: str, found: Sequence[Evaluation]) -> dict[str, float]:
    """Return the known Hits@20 of the recommenders beside the curve."""
    lines = {}
    for name, shown in (("popularity", "popularity"), ("ease", "EASE, centralised")):
        levels = [one.references[name].hits[_K] for one in found if name in one.references]
        if levels:
            lines[shown] = statistics.fmean(levels)
    printed = PRINTED_HITS.get(data, {}).get("PrivRec")
    if printed is not None:
        lines["PrivRec (paper)"] = printed[str(_K)]
    return lines


def experiment_line(frontier: Frontier) -> str:
    """Return a text: the runs protect nobody, and what they would cost with secure noise."""
    line = (
        "For experiments only: no protection. The noise of these runs came from seeds, and their"
        " figures from raw data."
    )
    if frontier.together is not None:
        runs = sum(point.seeds for point in frontier.points if point.epsilon is not None)
        line += (
            f" With secure noise the {runs} noised runs would cost the people in all of them"
            f" epsilon {epsilon_text(frontier.together)} together, at delta {frontier.delta:g}."
        )
    if any(point.epsilon is None for point in frontier.points):
        line += " The runs without noise alone make it infinite."
    return line + (
        " Choose an epsilon here, on people whose data may be looked at; then train once with"
        " 'privrec train', whose noise is secure."
    )


def _together(places: Sequence[Path], delta: float) -> float | None:
    """Return the total ε of these runs for a person who is in all of them; None without runs."""
    whole = PrivacyLedger()
    for place in places:
        whole = whole.compose(open_run(place).ledger)
    return whole.epsilon(delta) if places else None


def place_of(out: Path, epsilon: float, seed: int) -> Path:
    """Return the path of the run folder for one ε and seed."""
    return out / f"epsilon-{epsilon:g}-seed-{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to train. ε is None for a run without noise; δ is None for the default δ."""

    recipe: str
    seed: int
    epsilon: float | None = None
    delta: float | None = None

    @property
    def settings(self) -> dict[str, object]:
        """The settings that differ from the recipe's defaults."""
        budget = {"epsilon": self.epsilon, "delta": self.delta}
        given = {key: value for key, value in budget.items() if value is not None}
        return {"seed": self.seed, **given, **({"noise": "seeded"} if given else {})}

    @property
    def name(self) -> str:
        """The name of the run folder."""
        budget = "" if self.epsilon is None else f"-epsilon-{self.epsilon:g}"
        return f"{self.recipe}{budget}-seed-{self.seed}"


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise if there are no seeds, a negative seed, or the same seed twice."""
    if not seeds:
        raise SettingsError("`seeds` must have at least one seed")
    for seed in seeds:
        if seed < 0:
            raise SettingsError(f"`seeds` must be >= 0; got {seed}")
        if (times := list(seeds).count(seed)) > 1:
            often = "twice" if times == 2 else f"{times} times"
            raise SettingsError(f"`seeds` has {seed} {often}; give each seed once")


def jobs_of(
    recipes: Sequence[str], *, seeds: Sequence[int], epsilons: Sequence[float]
) -> list[Job]:
    """Return a run of each recipe for each seed, and for each ε if the recipe has noise."""
    check_seeds(seeds)
    if not epsilons or any(not 0 < epsilon < float("inf") for epsilon in epsilons):
        raise SettingsError(f"`epsilons` must be > 0 and finite; got {list(epsilons)}")
    named = [name.strip() for name in recipes]
    chosen = list(RECIPES) if named == ["all"] else list(dict.fromkeys(named))
    jobs = []
    for name in chosen:
        noised = recipe_named(name).has_noise
        budgets: Sequence[float | None] = sorted(set(epsilons)) if noised else [None]
        jobs += [Job(recipe=name, seed=s, epsilon=e) for e in budgets for s in seeds]
    return jobs


def _check_jobs(jobs: Iterable[Job], data: str) -> None:
    """Raise if a recipe cannot be trained on the data."""
    people = load(data)
    for job in {(job.recipe, job.epsilon): job for job in jobs}.values():
        try:
            prepare(configure(job.recipe, data, job.settings), people).stages()
        except SettingsError as error:
            raise SettingsError(f"{job.recipe}: {error}") from error


def run_jobs(
    jobs: Mapping[Path, Job], data: str, on_progress: OnProgress | None = None
) -> dict[Path, Evaluation]:
    """Train and evaluate the runs that do not exist yet; return the evaluation of each run."""
    _check_jobs(jobs.values(), data)
    evaluations = {}
    for done, (place, job) in enumerate(jobs.items()):
        report_progress(on_progress, "runs", done, len(jobs))
        evaluations[place] = train_and_evaluate(
            job.recipe, data, place, on_progress=on_progress, **job.settings
        )
    report_progress(on_progress, "runs", len(jobs), len(jobs))
    return evaluations
