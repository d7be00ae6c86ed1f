"""Runs that are trained and tested for figures: what is in the folder is not trained again.

The noise of such runs is seeded, so that figures can be repeated. They protect nobody.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from privrec.algorithms.recipes import RECIPES, recipe_named
from privrec.errors import SettingsError
from privrec.runs.loop import train_and_evaluate

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a recipe, a seed, and ε where it has noise."""

    recipe: str
    seed: int
    epsilon: float | None

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
    if not epsilons or any(not 0 < epsilon < float("inf") for epsilon in epsilons):
        raise SettingsError(f"`epsilons` must be > 0 and finite; got {list(epsilons)}")
    chosen = list(RECIPES) if list(recipes) == ["all"] else list(dict.fromkeys(recipes))
    jobs = []
    for name in chosen:
        has_noise = recipe_named(name).values.get("mechanism", "none") != "none"
        budgets: Sequence[float | None] = sorted(set(epsilons)) if has_noise else [None]
        jobs += [Job(recipe=name, seed=s, epsilon=e) for e in budgets for s in seeds]
    return jobs


def run_jobs(
    jobs: Sequence[Job], data: str, out: Path, on_progress: OnProgress | None = None
) -> list[Path]:
    """Train and evaluate what the folder does not have yet; return the runs' folders."""
    places = []
    for done, job in enumerate(jobs):
        if on_progress is not None:
            on_progress("runs", done, len(jobs))
        noised = {} if job.epsilon is None else {"epsilon": job.epsilon, "noise": "seeded"}
        train_and_evaluate(job.recipe, data, out / job.name, seed=job.seed, **noised)
        places.append(out / job.name)
    if on_progress is not None:
        on_progress("runs", len(jobs), len(jobs))
    return places
