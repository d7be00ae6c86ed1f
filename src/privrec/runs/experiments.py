"""Runs that are trained and tested for figures: what is in the folder is not trained again.

The noise of such runs is seeded, so that figures can be repeated. They protect nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privrec.algorithms.recipes import RECIPES, configure, prepare, recipe_named
from privrec.data.sources import load
from privrec.errors import SettingsError
from privrec.runs.loop import check_each_once, train_and_evaluate
from privrec.types import OnProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a recipe, a seed, and ε where it has noise."""

    recipe: str
    seed: int
    epsilon: float | None

    @property
    def settings(self) -> dict[str, Any]:
        """What is asked of it besides its recipe's own values."""
        noised = {} if self.epsilon is None else {"epsilon": self.epsilon, "noise": "seeded"}
        return {"seed": self.seed, **noised}

    @property
    def name(self) -> str:
        """The name of its folder."""
        budget = "" if self.epsilon is None else f"-epsilon-{self.epsilon:g}"
        return f"{self.recipe}{budget}-seed-{self.seed}"


def jobs_of(
    recipes: Sequence[str], *, seeds: Sequence[int], epsilons: Sequence[float]
) -> list[Job]:
    """Return a run of each recipe for each seed; one with noise also for each ε."""
    if not seeds or min(seeds) < 0:
        raise SettingsError(f"`seeds` must be >= 0, at least one; got {list(seeds)}")
    check_each_once(seeds)
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


def check_jobs(jobs: Sequence[Job], data: str) -> None:
    """Raise, before anything is trained, if a recipe cannot be trained on the data."""
    people, known = load(data), set()
    for job in jobs:
        if (job.recipe, job.epsilon) not in known:
            known.add((job.recipe, job.epsilon))
            try:
                prepare(configure(job.recipe, data, job.settings), people).stages()
            except SettingsError as error:
                raise SettingsError(f"{job.recipe}: {error}") from error


def run_jobs(
    jobs: Sequence[Job], data: str, out: Path, on_progress: OnProgress | None = None
) -> list[Path]:
    """Train and evaluate what the folder does not have yet; return the runs' folders."""
    check_jobs(jobs, data)
    places = []
    for done, job in enumerate(jobs):
        if on_progress is not None:
            on_progress("runs", done, len(jobs))
        place = out / job.name
        train_and_evaluate(job.recipe, data, place, on_progress=on_progress, **job.settings)
        places.append(place)
    if on_progress is not None:
        on_progress("runs", len(jobs), len(jobs))
    return places
