"""What is known of a run while it goes on, from its folder alone; nothing in it is changed."""

import math
import platform
import shlex
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.statement import epsilon_text
from privrec.runs.documents import (
    Memory,
    Progress,
    RoundFigures,
    RoundLine,
    Step,
    WatchedSettings,
    fault_in,
)
from privrec.runs.figures import figure_and_arm
from privrec.runs.folder import (
    RunFolder,
    evaluation_progress_path,
    is_alive,
    is_untouched,
    progress_path,
    read_run,
)
from privrec.show.report import Looks
from privrec.show.tail import SMALL, LedgerTail, Spent, Tail, documents_in, small_object

_FRESH_SECONDS = 60.0
"""On another machine a training counts as running if it wrote something so long ago at most."""
_SHORT_SECONDS = 1.0
"""Steps of shorter rounds are not shown: they are over before they are read."""
_BUSY = ("starting", "compiling", "training")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Validation(_Part):
    """The newest and the best Hits@k of the validation people."""

    k: int
    round: int
    hits: float
    interval: tuple[float, float] | None
    best_round: int
    best: float


class Spending(_Part):
    """What the ledger has so far. `epsilon` is a guarantee; None where there is none, or not yet.

    `epsilon_of_mechanism` is that of the first `epsilon_of_releases` noised releases.
    """

    releases: int
    noised_releases: int
    epsilon: float | None
    epsilon_of_mechanism: float | None
    epsilon_of_releases: int
    problem: str | None
    is_behind: bool
    delta: float
    target: float | None
    noise: str


class Status(_Part):
    """A run as it was last seen; `drawn` counts changes of its curves."""

    run: str
    state: str = "waiting"
    problem: str | None = None
    recipe: str | None = None
    data: str | None = None
    seed: int | None = None
    stages: list[str] | None = None
    stage: str | None = None
    stage_round: int | None = None
    stage_of: int | None = None
    round: int | None = None
    of: int | None = None
    step: Step | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    memory: Memory | None = None
    validation: Validation | None = None
    privacy: Spending | None = None
    drawn: int = 0
    resume: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the document that the page asks for: figures, and the sentences that it shows."""
        return {**self.model_dump(), "says": sentences(self)}


def check_watchable(path: Path) -> None:
    """Raise if a path can never become a run folder; one that does not exist yet may."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is no run folder: it is a file")
    if path.is_dir() and any(path.iterdir()) and not is_untouched(path):
        _read_settings(RunFolder(path=path))


def _read_settings(folder: RunFolder) -> WatchedSettings:
    size = folder.config_path.stat().st_size if folder.config_path.is_file() else 0
    if size > SMALL:
        raise RunFolderError(f"{folder.config_path} is too large: {size:,} bytes")
    found = read_run(folder.path)[1]
    if fault := fault_in(found, WatchedSettings):
        raise RunFolderError(f"{folder.config_path} {fault}")
    for key in ("seed", "delta", "epsilon"):
        if not _is_figure(found.get(key, 0)):
            raise RunFolderError(f"{folder.config_path} has no number of usual size for {key!r}")
    return WatchedSettings.model_validate(found)


def unreadable(path: Path, error: Exception) -> Status:
    """Return the status of a folder that nothing can be said of, because of an error."""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return Status(run=str(path), state="damaged", problem=why)


class Watched:
    """A run folder that is looked at again and again. Of files that grow it reads what is new."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.folder = RunFolder(path=path)
        self._rounds, self._figures = Tail(self.folder.rounds_path), Tail(self.folder.figures_path)
        self._ledger, self._spent = LedgerTail(self.folder), Spent()
        self._last: RoundLine | None = None
        self._seen: deque[tuple[float, int]] = deque(maxlen=20)
        self.losses: list[tuple[float, float]] = []
        self.looks: dict[str, Looks] = {}
        self.drawn = 0

    def look(self) -> Status:
        """Return how far the run is, what it has spent, and what its validation people showed."""
        status = Status(run=str(self.folder.path))
        try:
            if self.folder.config_path.is_file():
                settings = _read_settings(self.folder)
                known = {key: getattr(settings, key) for key in ("recipe", "data", "seed")}
                status = status.model_copy(update=known)
                self._read_rounds()
                status = self._progressed(status)
                ended = status.state in ("stopped", "finished", "evaluating")
                status = status.model_copy(update={"privacy": self._spending(settings, ended)})
        except PrivrecError as error:
            status = status.model_copy(update={"problem": str(error), "state": "damaged"})
        return status.model_copy(update={"drawn": self.drawn})

    def _read_rounds(self) -> None:
        anew, text = self._rounds.read()
        rounds = documents_in(text, RoundLine)
        if anew or rounds:
            self._last = rounds[-1] if rounds else None
        anew, text = self._figures.read()
        if anew:
            self.losses, self.looks = [], {}
        self.drawn += bool(anew or text)
        for line in documents_in(text, RoundFigures):
            if not _is_figure(line.round):
                continue
            at = line.round + 1
            if _is_figure(line.loss):
                self.losses.append((at, line.loss or 0.0))
            for k, share in line.validation.items():
                if _is_figure(share) and k.isdecimal() and len(k) < 5:
                    points, bars = self.looks.setdefault(k, ([], {}))
                    points.append((at, share or 0.0))
                    ends = line.validation_interval.get(k, ())
                    if len(ends) == 2 and all(map(_is_figure, ends)):
                        bars[at] = (ends[0], ends[1])

    def _progressed(self, status: Status) -> Status:
        """Return how far the run is, and whether anything computes."""
        progress = _progress_in(progress_path(self.folder))
        evaluating = _progress_in(evaluation_progress_path(self.folder))
        played = 0 if self._last is None else self._last.round + 1
        keys = ("stages", "of", "stage_of", "stage_round", "memory", "seconds_per_round")
        known: dict[str, object] = {key: getattr(progress, key) for key in keys}
        known |= {"round": played, "stage": self._last and self._last.stage}
        known |= {"validation": self._newest()}
        if self.folder.params_path.is_file():
            known |= {"state": "finished", "of": played}
            if _is_running(evaluating, evaluation_progress_path(self.folder)):
                known |= {"state": "evaluating", "step": evaluating.step}
                known |= {"memory": evaluating.memory}
            return status.model_copy(update=known)
        ended = progress.doing in (None, "stopped", "finished")
        if ended or not _is_running(progress, progress_path(self.folder)):
            words = ["privrec", "train", str(status.recipe), "--out", status.run, "--resume"]
            known |= {"state": "stopped", "resume": shlex.join(words)}
            return status.model_copy(update=known)
        at = max(played, progress.round or 0)
        known |= {"state": progress.doing, "round": at}
        known |= {"stage": progress.stage or known["stage"]}
        pace = self._pace(progress, at)
        short = pace is not None and pace < _SHORT_SECONDS
        known |= {"step": None if short else progress.step}
        known |= {"seconds_left": _seconds_left(progress, pace)}
        return status.model_copy(update=known)

    def _pace(self, progress: Progress, at: int) -> float | None:
        """Return the seconds of a round; None if that is not known yet."""
        if not self._seen or self._seen[-1][1] != at:
            self._seen.append((time.monotonic(), at))
        if progress.stage_round and progress.seconds_per_round is not None:
            return progress.seconds_per_round
        if len(self._seen) <= 2 or self._seen[0][1] >= at:
            return None
        # Under secure noise no timings are written: take those that were seen from here.
        return median((b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(self._seen) if b[1] > a[1])

    def _newest(self) -> Validation | None:
        """Return the newest and the best Hits@k, for the largest k up to 20."""
        if not self.looks:
            return None
        k = max((k for k in self.looks if int(k) <= 20), key=int, default=min(self.looks, key=int))
        points, ends = self.looks[k]
        (at, hits), (best_at, best) = points[-1], max(points, key=lambda point: point[1])
        return Validation(
            k=int(k),
            round=int(at),
            hits=hits,
            interval=ends.get(at),
            best_round=int(best_at),
            best=best,
        )

    def _spending(self, settings: WatchedSettings, ended: bool) -> Spending:
        counted = self._ledger.read()
        delta = settings.delta if settings.delta and 0 < settings.delta < 1 else 1e-6
        spent = self._spent.epsilon(counted.noised, delta, at_once=ended)
        is_all = spent.releases == counted.noised.releases and not self._ledger.is_behind
        promised = counted.noised == counted.all and counted.kinds <= {"secure"}
        kinds = [kind for kind in ("seeded", "secure") if kind in counted.kinds]
        return Spending(
            releases=counted.all.releases,
            noised_releases=counted.noised.releases,
            epsilon=spent.epsilon if promised and is_all else None,
            epsilon_of_mechanism=spent.epsilon,
            epsilon_of_releases=spent.releases,
            problem=spent.problem,
            is_behind=self._ledger.is_behind,
            delta=delta,
            target=settings.epsilon,
            noise=kinds[0] if kinds else "none",
        )


def _progress_in(path: Path) -> Progress:
    """Return what a progress file tells; nothing if there is none."""
    found = {key: value for key, value in small_object(path).items() if value is not None}
    if fault := fault_in(found, Progress):
        raise RunFolderError(f"{path} {fault}")
    return Progress.model_validate(found)


def _is_running(progress: Progress, path: Path) -> bool:
    """Return whether the process that wrote a progress file still runs."""
    writer = progress.model_extra or {}
    if not progress.model_fields_set and not writer:
        return False
    if writer.get("machine") != platform.node():
        return time.time() - path.stat().st_mtime < _FRESH_SECONDS if path.is_file() else False
    pid = writer.get("pid")
    return isinstance(pid, int) and pid > 0 and is_alive(pid, writer.get("process"))


def _seconds_left(progress: Progress, pace: float | None) -> float | None:
    """Return the time that the stage still takes, by its last rounds or by the one it is in."""
    left = (progress.stage_of or 0) - (progress.stage_round or 0)
    if pace is not None:
        return pace * left
    step = progress.step
    if step is None or step.of <= 1 or not step.done or step.seconds is None:
        return None
    return step.seconds * (step.of - step.done) / step.done * left


def _is_figure(value: object) -> bool:
    """Return whether a value is a number that can be drawn; larger ones overflow."""
    return isinstance(value, int | float) and abs(value) < 1e300


def sentences(status: Status) -> dict[str, str]:
    """Return what the page says, by the place where it stands."""
    named = status.recipe is not None
    return {
        "title": f"{status.recipe} on {status.data}" if named else status.run,
        "state": _state_text(status),
        "rounds": _rounds_text(status),
        "step": _step_text(status.step),
        "left": _left_text(status),
        "privacy": _privacy_text(status.privacy),
        "validation": _validation_text(status),
        "memory": _memory_text(status),
    }


def _state_text(status: Status) -> str:
    return {
        "waiting": f"Waiting: {status.run} does not exist yet, or nothing is in it.",
        "starting": "The training starts.",
        "compiling": "Programs are being compiled.",
        "training": "The training is running.",
        "evaluating": "The training is finished; an evaluation is running.",
        "finished": "The training is finished.",
        "stopped": "Not running any more. It goes on from its last checkpoint with this command:",
        "damaged": f"The run folder cannot be read: {status.problem}",
    }.get(status.state, status.state)


def _rounds_text(status: Status) -> str:
    if status.round is None:
        return "–"
    text = f"{status.round:,}" + (f" of {status.of:,}" if status.of else "")
    stages = status.stages or []
    if len(stages) > 1 and status.stage in stages:
        text += f" · stage {status.stage}, {stages.index(status.stage) + 1} of {len(stages)}"
    return text


def _step_text(step: Step | None) -> str:
    if step is None:
        return ""
    if step.of == 1:
        return f"{step.what} …"
    per_cent = " (per cent)" if step.of == 100 and step.seconds is None else ""
    return f"{step.what}: {step.done:,} of {step.of:,}{per_cent}"


def _left_text(status: Status) -> str:
    if status.state in ("finished", "evaluating"):
        return "none: the training is finished"
    if status.seconds_left is None:
        return "not known yet" if status.state in _BUSY else "–"
    last = not status.stages or status.stage == status.stages[-1]
    text = f"about {duration(status.seconds_left)}" + ("" if last else ", for this stage")
    pace = status.seconds_per_round
    return text + (f" ({duration(pace)} a round)" if pace else "")


def _privacy_text(spending: Spending | None) -> str:
    if spending is None or not spending.releases:
        return "nothing is published yet"
    releases = _count(spending.releases, "release")
    if not spending.noised_releases:
        return f"no noise, so no guarantee · {releases}"
    if spending.problem is not None:
        return f"no guarantee: epsilon is not known: {spending.problem} · {releases}"
    if spending.epsilon_of_mechanism is None:
        return f"is being computed · {releases}"
    why, bare = "", spending.releases - spending.noised_releases
    if spending.noise == "seeded":
        why = "no guarantee: the noise comes from a seed. Of the mechanism: "
    elif bare:
        why = f"no guarantee: {_count(bare, 'release')} had no noise. Of the others: "
    return why + _spent_text(spending, spending.epsilon_of_mechanism)


def _spent_text(spending: Spending, epsilon: float) -> str:
    """Return ε so far. Where it is not yet of all releases, it says so: it is more in truth."""
    first, noised = spending.epsilon_of_releases, spending.noised_releases
    is_part = first < noised or spending.is_behind
    text = f"ε ≥ {_rounded_down(epsilon)}" if is_part else f"ε {epsilon_text(epsilon)}"
    text += f" of {spending.target:g}" if spending.target else ""
    text += f" at δ {spending.delta:g}"
    if not is_part:
        return f"{text} · {_count(noised, 'release')}"
    more = " or more" if spending.is_behind else ""
    counted = f"first {first:,} of {_count(noised, 'release')}{more}"
    return f"{text} ({counted}; the rest is being counted)"


def _rounded_down(epsilon: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    return f"{math.floor(epsilon * 10**digits) / 10**digits:.{digits}f}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _validation_text(status: Status) -> str:
    if (newest := status.validation) is not None:
        shown = figure_and_arm(newest.hits, newest.interval)
        best = f"best {newest.best:.3f} after round {newest.best_round:,}"
        return f"Hits@{newest.k} {shown} after round {newest.round:,} · {best}"
    if status.privacy is not None and status.privacy.noise == "secure":
        return "not written under secure noise (--diagnostics writes it)"
    return "none yet"


def _memory_text(status: Status) -> str:
    """Return the memory of the process. The system may count its peak later than what is used."""
    if (memory := status.memory) is None:
        return "–"
    now = f"{size(memory.now)} now, " if status.state in (*_BUSY, "evaluating") else ""
    return f"{now}{size(max(memory.now, memory.peak))} at most"


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(0.004), duration(42.2), duration(250), duration(9000)
    ('0.004 s', '42 s', '4 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Return a number of bytes in words.

    >>> size(3e6), size(2.14e9)
    ('3 MB', '2.1 GB')
    """
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
