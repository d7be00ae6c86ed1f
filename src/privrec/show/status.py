"""The state of a run during its training, read from its run folder. Nothing there is changed.

A growing file is read completely when it has changed, and then not for twenty times as long as the
reading took. So a page takes at most 5 % of a core from the training.
"""

import contextlib
import json
import math
import os
import platform
import shlex
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict

from privrec.data.text import in_gb
from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.statement import epsilon_text
from privrec.runs.documents import (
    NOT_JSON,
    Memory,
    Progress,
    RoundFigures,
    RoundLine,
    Step,
    WatchedSettings,
    fault_in,
)
from privrec.runs.figures import at_least, duration, figure_and_arm
from privrec.runs.folder import RunFolder, file_errors, is_alive, is_untouched, no_run, settings_in
from privrec.runs.ledger import check_has, checked_lines, ledger_in, whole_lines
from privrec.show.nodes import is_server, nodes_html, run_folder_in
from privrec.show.report import looks_in, loss_chart, validation_curves

_K = 20
_PATIENCE = 20.0
"""Growing files are not read for this many times the duration of the last reading. Chosen by hand,
like the constants below."""
_SETTINGS = 16 * 2**10
"""The most bytes of the settings. TOML of this size takes at most a second to parse; a megabyte can
take hours."""
_SMALL = 2**20
"""The most bytes of `progress.json`."""
_LARGEST = 128 * 2**20
"""The most bytes of a growing file; privrec writes less in 100,000 rounds."""
_KINDS = 32
"""With more kinds of releases, epsilon is not computed, because each kind takes time. A recipe has
few kinds."""
_FRESH_SECONDS = 60.0
"""A training on another machine counts as running if its last write is at most this long ago."""
_SHORT_SECONDS = 1.0
"""Steps are not shown if rounds are shorter than this: nobody could read them in time."""
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
    """The cost of the releases in the ledger so far.

    `epsilon` is a guarantee; None if there is none or it is not known yet. `epsilon_of_mechanism`
    is the epsilon of the releases with noise. If `is_behind`, the ledger has newer releases that
    are not counted yet.
    """

    releases: int
    noised_releases: int
    epsilon: float | None
    epsilon_of_mechanism: float | None
    problem: str | None
    is_behind: bool = False
    delta: float
    target: float | None
    noise: str


class Status(_Part):
    """The state of a run when its folder was read."""

    run: str
    state: str = "waiting"
    problem: str | None = None
    recipe: str | None = None
    data: str | None = None
    seed: int | None = None
    stages: list[str] | None = None
    stage: str | None = None
    round: int | None = None
    of: int | None = None
    step: Step | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    memory: Memory | None = None
    validation: Validation | None = None
    privacy: Spending | None = None
    resume: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the figures and the sentences for the page as a JSON object."""
        return {**self.model_dump(), "says": sentences(self)}


def check_watchable(path: Path) -> None:
    """Raise if a path is not and cannot become a run folder."""
    path = run_folder_in(path)
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is no run folder: it is a file")
    if path.is_dir() and any(path.iterdir()) and not is_untouched(path):
        folder = RunFolder(path=path)
        if not os.path.lexists(folder.config_path):
            raise RunFolderError(f"{path} {no_run(path)}")
        _read_settings(folder)


def _read_settings(folder: RunFolder) -> WatchedSettings:
    values = settings_in(folder, _content(folder.config_path, _SETTINGS))
    if fault := fault_in(values, WatchedSettings):
        raise RunFolderError(f"{folder.config_path} {fault}")
    for key in ("seed", "delta", "epsilon"):
        if not _is_figure(values.get(key, 0)):
            raise RunFolderError(f"{folder.config_path} has no number of usual size for {key!r}")
    return WatchedSettings.model_validate(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The content of the growing files: the last round, validation, charts and privacy cost."""

    last: RoundLine | None = None
    validation: Validation | None = None
    charts: str = ""
    privacy: Spending | None = None


class Watched:
    """A run folder that is read repeatedly, to show the progress of its training.

    The folder of a federation's server may stand in its place: its run is shown, and its nodes.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.federation = path if is_server(path) else None
        self.folder, self.files = RunFolder(path=run_folder_in(path)), Files()
        self._lock = threading.Lock()
        self._settings: tuple[_Mark, WatchedSettings | PrivrecError] | None = None
        self._problem: Exception | None = None
        self._marks: list[_Mark | None] = []
        self._rest_until = 0.0
        self._rounds: deque[tuple[float, int]] = deque(maxlen=20)

    def text(self) -> str:
        """Return the status and the charts as JSON; any error becomes part of the status."""
        with self._lock:
            try:
                document = self.look().as_json()  # It reads the files that have the charts.
                nodes = nodes_html(self.federation) if self.federation else ""
                shown = {"charts": self.files.charts, "nodes": nodes}
                return json.dumps({**document, **shown}, allow_nan=False)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:300]
                return json.dumps({**self._damaged(why).as_json(), "charts": "", "nodes": ""})

    def look(self) -> Status:
        """Return the progress of the run, its privacy cost and its validation figures."""
        mark = _mark_of(self.folder.config_path)
        if mark is None:
            return Status(run=str(self.folder.path))
        try:
            return self._look(self._settings_at(mark))
        except PrivrecError as error:
            return self._damaged(str(error))

    def _settings_at(self, mark: "_Mark") -> WatchedSettings:
        """Return the settings, or raise their error; the file is read again if it changed."""
        if self._settings is None or self._settings[0] != mark:
            try:
                self._settings = mark, _read_settings(self.folder)
            except PrivrecError as error:
                self._settings = mark, error
        settings = self._settings[1]
        if isinstance(settings, PrivrecError):
            raise settings
        return settings

    def _damaged(self, why: str) -> Status:
        return Status(run=str(self.folder.path), state="damaged", problem=" ".join(why.split()))

    def _look(self, settings: WatchedSettings) -> Status:
        progress = _progress_in(self.folder.progress_path)
        is_finished = self.folder.params_path.is_file()
        is_ended = progress.doing in (None, "stopped", "finished")
        is_training = not is_finished and not is_ended and _is_running(progress, self.folder)
        is_behind = self._read(settings, at_once=not is_training)
        last, privacy = self.files.last, self.files.privacy
        if is_behind and privacy is not None:
            privacy = privacy.model_copy(update={"epsilon": None, "is_behind": True})
        played = 0 if last is None else last.round + 1
        status = Status(
            run=str(self.folder.path),
            recipe=settings.recipe,
            data=settings.data,
            seed=settings.seed,
            stages=progress.stages,
            stage=last and last.stage,
            round=played,
            of=played if is_finished else progress.of,
            seconds_per_round=progress.seconds_per_round,
            memory=progress.memory,
            validation=self.files.validation,
            privacy=privacy,
        )
        if is_training:
            known = self._training(progress, played)
        elif not is_finished:
            command = ["privrec", "train", settings.recipe, "--out", status.run, "--resume"]
            if self.federation:
                command = ["privrec", "federate", "server", str(self.federation)]
            known = {"state": "stopped", "resume": shlex.join(command)}
        else:
            known = {"state": "finished"}
        return status.model_copy(update=known)

    def _read(self, settings: WatchedSettings, *, at_once: bool) -> bool:
        """Read the growing files, unless they were just read; return whether they are newer."""
        folder = self.folder
        growing = (folder.rounds_path, folder.figures_path, folder.ledger_path)
        marks = [_mark_of(path) for path in growing]
        if marks != self._marks and not at_once and time.monotonic() < self._rest_until:
            return True
        if marks != self._marks:
            started = time.thread_time()
            try:
                self.files, self._problem = _files_of(folder, settings), None
            except Exception as error:  # Shown until the files change, whatever it is.
                self._problem = error
            finally:
                self._marks = marks
                took = time.thread_time() - started
                self._rest_until = time.monotonic() + _PATIENCE * took
        if self._problem is not None:
            raise self._problem
        return False

    def _training(self, progress: Progress, played: int) -> dict[str, object]:
        """Return the progress of a running training, as fields of `Status`."""
        at = max(played, progress.round or 0)
        pace = self._pace(progress, at)
        is_short = pace is not None and pace < _SHORT_SECONDS
        return {
            "state": progress.doing,
            "round": at,
            "stage": progress.stage or (self.files.last and self.files.last.stage),
            "step": None if is_short else progress.step,
            "seconds_left": _seconds_left(progress, pace),
        }

    def _pace(self, progress: Progress, at: int) -> float | None:
        """Return the seconds per round; None if they are not known yet."""
        rounds = self._rounds
        if not rounds or rounds[-1][1] != at:
            rounds.append((time.monotonic(), at))
        if progress.stage_round and progress.seconds_per_round is not None:
            return progress.seconds_per_round
        # Under secure noise the run writes no timings, so measure them here.
        (began, first), (now, last) = rounds[0], rounds[-1]
        return (now - began) / (last - first) if len(rounds) > 2 and last > first else None


_Mark = tuple[int, int, int, int]


def _mark_of(path: Path) -> _Mark | None:
    """Return a value that changes whenever the file does; None if there is no file."""
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns


def _files_of(folder: RunFolder, settings: WatchedSettings) -> Files:
    """Return the content of the growing files; raise if they are too large or damaged."""
    # Read the rounds before the ledger. A training writes the ledger line of a round before the
    # round, so each round that is read here has its line.
    last = _last_round(folder.rounds_path)
    privacy = _spending(folder, settings, played=0 if last is None else last.round + 1)
    rounds = list(_figures_in(folder.figures_path))
    return Files(last=last, validation=_newest(rounds), charts=run_charts(rounds), privacy=privacy)


def _content(path: Path, most: int) -> bytes:
    """Return the content of a file; empty if there is no file. Raise if it has too many bytes.

    Pipes and devices are refused, because reading them may never end. The file is opened before
    its kind is checked, so that it cannot be replaced in between. O_NONBLOCK: opening a pipe would
    wait for a writer.
    """
    with file_errors(path, "read"):
        try:
            place = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise RunFolderError(f"{path} is damaged: it is not a usual file")
            with open(place, "rb", closefd=False) as file:
                content = file.read(most + 1)
        finally:
            os.close(place)
    if len(content) > most:
        raise RunFolderError(f"{path} is too large: it has more than {most:,} bytes")
    return content


def _last_round(path: Path) -> RoundLine | None:
    """Return the last whole line of `rounds.jsonl`; None if it has none yet."""
    text = _content(path, _LARGEST)
    end = text.rfind(b"\n")
    if end < 0:
        return None
    try:
        return RoundLine.model_validate_json(text[text.rfind(b"\n", 0, end) + 1 : end])
    except NOT_JSON as error:
        raise RunFolderError(f"{path} is damaged at its last line: it is no round") from error


def _figures_in(path: Path) -> Iterator[RoundFigures]:
    """Yield the whole lines of `simulation/rounds.jsonl` that are rounds and can be drawn."""
    text = _content(path, _LARGEST)
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(*NOT_JSON):
            line_figures = RoundFigures.model_validate_json(line)
            intervals = line_figures.validation_interval.values()
            shown = line_figures.validation.values()
            numbers = [line_figures.round, line_figures.loss, *shown, *chain(*intervals)]
            is_whole = all(len(ends) == 2 for ends in intervals)
            if is_whole and all(number is None or _is_figure(number) for number in numbers):
                yield line_figures


def run_charts(rounds: Sequence[RoundFigures]) -> Markup:
    """Return the validation and loss curves of a run so far, as HTML."""
    charts = {"Validation": validation_curves(rounds), "Loss on the devices": loss_chart(rounds)}
    shown = [Markup("<h2>{}</h2>{}").format(name, chart) for name, chart in charts.items() if chart]
    return Markup().join(shown)


def _newest(rounds: Sequence[RoundFigures]) -> Validation | None:
    """Return the newest and the best Hits@20 of the validation people; None without any."""
    points, ends = looks_in(rounds, _K)
    if not points:
        return None
    (at, hits), (best_at, best) = points[-1], max(points, key=lambda point: point[1])
    return Validation(
        k=_K, round=int(at), hits=hits, interval=ends.get(at), best_round=int(best_at), best=best
    )


def _spending(folder: RunFolder, settings: WatchedSettings, played: int) -> Spending:
    """Return the cost of the releases in the ledger; raise unless it has all played rounds."""
    path = folder.ledger_path
    lines = checked_lines(path, whole_lines(_content(path, _LARGEST)))
    check_has(folder, lines, range(played))
    kinds = {line.noise for line in lines}
    noised = [line for line in lines if line.release.is_private]
    delta = settings.delta if settings.delta and 0 < settings.delta < 1 else 1e-6
    epsilon, problem = None, None
    try:
        if len({line.release for line in noised}) > _KINDS:
            problem = "too many kinds of releases"
        elif noised:
            epsilon = ledger_in(noised).epsilon(delta)
    except Exception as error:  # A file can hold any ledger; the page must show its error.
        problem = " ".join(str(error).split()) or repr(error)
    if epsilon is not None and math.isinf(epsilon):
        epsilon, problem = None, "there is too little noise"
    return Spending(
        releases=len(lines),
        noised_releases=len(noised),
        epsilon=epsilon if len(noised) == len(lines) and kinds <= {"secure"} else None,
        epsilon_of_mechanism=epsilon,
        problem=problem,
        delta=delta,
        target=settings.epsilon,
        noise=next((kind for kind in ("seeded", "secure") if kind in kinds), "none"),
    )


def _progress_in(path: Path) -> Progress:
    """Return the content of a progress file; an empty `Progress` if it is no JSON object."""
    content, values = _content(path, _SMALL), None
    with contextlib.suppress(*NOT_JSON):
        values = json.loads(content)
    if not isinstance(values, dict):
        return Progress()
    if fault := fault_in(values, Progress):
        raise RunFolderError(f"{path} {fault}")
    return Progress.model_validate(values)


def _is_running(progress: Progress, folder: RunFolder) -> bool:
    """Return whether the process that wrote the progress file still runs."""
    writer, path = progress.model_extra, folder.progress_path
    if not writer:
        return False
    if writer.get("machine") != platform.node():
        return time.time() - path.stat().st_mtime < _FRESH_SECONDS if path.is_file() else False
    pid = writer.get("pid")
    return isinstance(pid, int) and pid > 0 and is_alive(pid, writer.get("process"))


def _seconds_left(progress: Progress, pace: float | None) -> float | None:
    """Return the seconds left of the stage, estimated from its last rounds or the present one."""
    left = (progress.stage_of or 0) - (progress.stage_round or 0)
    if pace is not None:
        return pace * left
    step = progress.step
    if step is None or step.of <= 1 or not step.done or step.seconds is None:
        return None
    return step.seconds * (step.of - step.done) / step.done * left


def _is_figure(value: object) -> bool:
    """Return whether a value is a number that can be drawn; numbers above 1e300 may overflow."""
    return isinstance(value, int | float) and abs(value) < 1e300


def sentences(status: Status) -> dict[str, str]:
    """Return the sentences of the page, by the element that shows them."""
    has_recipe = status.recipe is not None
    return {
        "title": f"{status.recipe} on {status.data}" if has_recipe else status.run,
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
    if status.state == "finished":
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
    releases = _releases(spending.releases)
    if not spending.noised_releases:
        return f"no noise, so no guarantee · {releases}"
    if spending.problem is not None:
        return f"no guarantee: epsilon is not known: {spending.problem} · {releases}"
    why, bare = "", spending.releases - spending.noised_releases
    if spending.noise == "seeded":
        why = "no guarantee: the noise comes from a seed. Of the mechanism: "
    elif bare:
        why = f"no guarantee: {_releases(bare)} had no noise. Of the others: "
    epsilon = spending.epsilon_of_mechanism or 0.0
    is_part, counted = spending.is_behind, _releases(spending.noised_releases)
    text = f"ε ≥ {at_least(epsilon)}" if is_part else f"ε {epsilon_text(epsilon)}"
    text += f" of {spending.target:g}" if spending.target else ""
    text += f" at δ {spending.delta:g}"
    return (
        why
        + text
        + (f" (first {counted}; the rest is being counted)" if is_part else f" · {counted}")
    )


def _releases(count: int) -> str:
    return f"{count:,} release{'' if count == 1 else 's'}"


def _validation_text(status: Status) -> str:
    if (newest := status.validation) is not None:
        shown = figure_and_arm(newest.hits, newest.interval)
        best = f"best {newest.best:.3f} after round {newest.best_round:,}"
        return f"Hits@{newest.k} {shown} after round {newest.round:,} · {best}"
    if status.privacy is not None and status.privacy.noise == "secure":
        return "not written under secure noise (--set diagnostics=true writes it)"
    return "none yet"


def _memory_text(status: Status) -> str:
    """Return the memory of the process, now and at its peak.

    The operating system may update the peak later than the present value, so the larger is shown.
    """
    if (memory := status.memory) is None:
        return "–"
    now = f"{in_gb(memory.now)} now, " if status.state in _BUSY else ""
    return f"{now}{in_gb(max(memory.now, memory.peak))} at most"
