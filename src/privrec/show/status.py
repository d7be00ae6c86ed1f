"""What is known of a run while it goes on, from its folder alone; nothing in it is changed.

What the page says of a run, in sentences.
"""

import math
import platform
import shlex
import time
from collections import deque
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from privrec.errors import PrivrecError, RunFolderError
from privrec.privacy.questions import as_listed
from privrec.privacy.statement import epsilon_text
from privrec.runs.documents import Progress, RoundLine, WatchedSettings, fault_in
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
from privrec.show.tail import SMALL, LedgerTail, SmallFile, Spent, Tail, age_of, mark_of, objects_in


def says(found: dict[str, Any]) -> dict[str, str]:
    """Return the sentences of a status document, by the place in the page where they stand."""
    named = found["recipe"] is not None
    return {
        "title": f"{found['recipe']} on {found['data']}" if named else found["run"],
        "state": _state(found),
        "rounds": _rounds(found),
        "step": _step(found.get("step")),
        "left": _left(found),
        "privacy": _privacy(found.get("privacy")),
        "validation": _validation(found.get("validation"), found),
        "memory": _memory(found.get("memory"), is_running=found["state"] in (*_BUSY, "evaluating")),
    }


def _state(found: dict[str, Any]) -> str:
    return {
        "waiting": f"Waiting: {found['run']} does not exist yet, or nothing is in it.",
        "starting": "The training starts.",
        "compiling": "Programs are being compiled.",
        "training": "The training is running.",
        "evaluating": "The training is finished; an evaluation is running.",
        "finished": "The training is finished.",
        "stopped": "Not running any more. It goes on from its last checkpoint with this command:",
        "damaged": f"The run folder cannot be read: {found['problem']}",
    }.get(found["state"], str(found["state"]))


def _rounds(found: dict[str, Any]) -> str:
    if found["round"] is None:
        return "–"
    said = f"{found['round']:,}"
    said += f" of {found['of']:,}" if found.get("of") else ""
    stages = found.get("stages") or []
    if found["stage"] is not None and len(stages) > 1 and found["stage"] in stages:
        said += f" · stage {found['stage']}, {stages.index(found['stage']) + 1} of {len(stages)}"
    return said


def _step(step: dict[str, Any] | None) -> str:
    if not step:
        return ""
    if step["of"] == 1:
        return f"{step['what']} …"
    return f"{step['what']}: {step['done']:,} of {step['of']:,}" + (
        " (per cent)" if step["of"] == 100 and "seconds" not in step else ""
    )


def _left(found: dict[str, Any]) -> str:
    if found["state"] in ("finished", "evaluating"):
        return "none: the training is finished"
    seconds = found.get("seconds_left")
    if seconds is None:
        return "not known yet" if found["state"] in _BUSY else "–"
    stages = found.get("stages") or []
    last = not stages or found["stage"] == stages[-1]
    said = f"about {duration(seconds)}" + ("" if last else ", for this stage")
    pace = found.get("seconds_per_round")
    return said + (f" ({duration(pace)} a round)" if pace else "")


_BUSY = ("starting", "compiling", "training")


def _privacy(found: dict[str, Any] | None) -> str:
    if found is None or not found["releases"]:
        return "nothing is published yet"
    if not found["noised_releases"]:
        return f"no noise, so no guarantee · {_count(found['releases'], 'release')}"
    if found["problem"] is not None:
        counted = _count(found["releases"], "release")
        return f"no guarantee: epsilon is not known: {found['problem']} · {counted}"
    if found["epsilon_of_mechanism"] is None:
        return f"is being computed · {_count(found['releases'], 'release')}"
    why, bare = "", found["releases"] - found["noised_releases"]
    if found["noise"] == "seeded":
        why = "no guarantee: the noise comes from a seed. Of the mechanism: "
    elif bare:
        why = f"no guarantee: {_count(bare, 'release')} had no noise. Of the others: "
    return why + _spent(found)


def _spent(found: dict[str, Any]) -> str:
    """Return ε so far. Where it is not yet of all releases, it says so: it is more in truth."""
    epsilon, first = found["epsilon_of_mechanism"], found["epsilon_of_releases"]
    all_ = found["noised_releases"]
    is_part = first < all_ or found["is_behind"]
    said = f"ε ≥ {_rounded_down(epsilon)}" if is_part else f"ε {epsilon_text(epsilon)}"
    said += f" of {found['target']:g}" if found["target"] else ""
    said += f" at δ {found['delta']:g}"
    if not is_part:
        return f"{said} · {_count(all_, 'release')}"
    more = " or more" if found["is_behind"] else ""
    return f"{said} (first {first:,} of {_count(all_, 'release')}{more}; the rest is being counted)"


def _rounded_down(epsilon: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    return f"{math.floor(epsilon * 10**digits) / 10**digits:.{digits}f}"


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _validation(found: dict[str, Any] | None, whole: dict[str, Any]) -> str:
    if found is not None:
        shown = figure_and_arm(found["hits"], found.get("interval"))
        said = f"Hits@{found['k']} {shown} after round {found['round']:,}"
        return f"{said} · best {found['best']:.3f} after round {found['best_round']:,}"
    if (whole.get("privacy") or {}).get("noise") == "secure":
        return "not written under secure noise (--diagnostics writes it)"
    return "none yet"


def _memory(found: dict[str, Any] | None, *, is_running: bool) -> str:
    """Return the memory of the process. The system may count its peak later than what is used."""
    if not found:
        return "–"
    now = f"{size(found['now'])} now, " if is_running else ""
    return f"{now}{size(max(found['now'], found['peak']))} at most"


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


_FRESH_SECONDS = 60.0
"""On another machine a training counts as running if it wrote something so long ago at most."""
_SHORT_SECONDS = 1.0
"""Steps of shorter rounds are not shown: they are over before they are read."""
Points = list[tuple[float, float]]


def check_watchable(path: Path) -> None:
    """Raise if a path can never become a run folder; one that does not exist yet may."""
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is no run folder: it is a file")
    if path.is_dir() and any(path.iterdir()) and not is_untouched(path):
        _read_settings(RunFolder(path=path))


def _read_settings(folder: RunFolder) -> dict[str, Any]:
    mark = mark_of(folder.config_path)
    if mark is not None and mark[2] > SMALL:
        raise RunFolderError(f"{folder.config_path} is too large: {mark[2]:,} bytes")
    found = read_run(folder.path)[1]
    if fault := fault_in(found, WatchedSettings):
        raise RunFolderError(f"{folder.config_path} {fault}")
    for key in ("seed", "delta", "epsilon"):
        if not _is_figure(found.get(key, 0)):
            raise RunFolderError(f"{folder.config_path} has no number of usual size for {key!r}")
    return found


def _nothing_known(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"run": str(path), "state": "waiting", "problem": None}
    return found | dict.fromkeys(("recipe", "data", "seed", "stage", "step", "round", "of"))


def unreadable(path: Path, error: Exception) -> dict[str, Any]:
    """Return the status document of a folder that nothing can be said of, because of an error."""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    found = _nothing_known(path) | {"state": "damaged", "problem": why, "drawn": 0, "resume": None}
    return found | {"says": says(found)}


class Watched:
    """A run folder that is looked at again and again. It reads only what is new."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.folder = RunFolder(path=path)
        self._progress = SmallFile(progress_path(self.folder))
        self._evaluating = SmallFile(evaluation_progress_path(self.folder))
        self._rounds, self._figures = Tail(self.folder.rounds_path), Tail(self.folder.figures_path)
        self._ledger, self._spent = LedgerTail(self.folder), Spent()
        self._config: tuple[Any, dict[str, Any]] = (None, {})
        self._last: dict[str, Any] | None = None
        self._seen: deque[tuple[float, int]] = deque(maxlen=20)
        self.losses: Points = []
        self.looks: dict[str, Looks] = {}
        self.drawn = 0

    def look(self) -> dict[str, Any]:
        """Return the status document: figures, and the sentences that the page shows."""
        found = _nothing_known(self.folder.path)
        try:
            config = self._settings()
            if config:
                found |= {key: config.get(key) for key in ("recipe", "data", "seed")}
                self._read_rounds()
                found |= self._progressed()
                ended = found["state"] in ("stopped", "finished", "evaluating")
                found["privacy"] = self._privacy(config, ended=ended)
        except PrivrecError as error:
            found |= {"problem": str(error), "state": "damaged"}
        found["drawn"] = self.drawn
        found["resume"] = self._resume_line(found)
        return found | {"says": says(found)}

    def releases(self) -> dict[str, Any]:
        """Return the releases so far as the calculator takes them."""
        counted = self._ledger.counted
        return {
            "releases": [as_listed(release, times) for release, times in counted.all.entries],
            "seeded": "seeded" in counted.kinds,
            "volunteers": counted.volunteers,
        }

    def _settings(self) -> dict[str, Any]:
        mark = mark_of(self.folder.config_path)
        if mark is None:
            self._config = (None, {})
        elif mark != self._config[0]:
            self._config = (mark, _read_settings(self.folder))
        return self._config[1]

    def _read_rounds(self) -> None:
        anew, text = self._rounds.read()
        lines = [line for line in objects_in(text) if fault_in(line, RoundLine) is None]
        if anew or lines:
            self._last = lines[-1] if lines else None
        anew, text = self._figures.read()
        if anew:
            self.losses, self.looks = [], {}
        lines = objects_in(text)
        for line in lines:
            place = line.get("round")
            if not isinstance(place, int) or not _is_figure(place):
                continue
            if _is_figure(line.get("loss")):
                self.losses.append((place + 1, line["loss"]))
            shares, ends = line.get("validation"), line.get("validation_interval")
            for k, share in shares.items() if isinstance(shares, dict) else ():
                if _is_figure(share) and k.isdecimal() and len(k) < 5:
                    points, bars = self.looks.setdefault(k, ([], {}))
                    points.append((place + 1, share))
                    both = ends.get(k) if isinstance(ends, dict) else None
                    if isinstance(both, list) and len(both) == 2 and all(map(_is_figure, both)):
                        bars[place + 1] = (both[0], both[1])
        self.drawn += bool(anew or lines)

    def _progressed(self) -> dict[str, Any]:
        """Return how far the run is, and whether anything computes."""
        told, evaluating = _told(self._progress), _told(self._evaluating)
        played = 0 if self._last is None else self._last["round"] + 1
        stage = None if self._last is None else self._last.get("stage")
        found: dict[str, Any] = {"round": played, "stage": stage, "stages": told.get("stages")}
        keys = ("of", "stage_of", "stage_round", "memory", "seconds_per_round")
        found |= {key: told.get(key) for key in keys}
        found |= {"validation": self._newest(), "seconds_left": None}
        if self.folder.params_path.is_file():
            found |= {"state": "finished", "of": played}
            if evaluating and self._is_alive(evaluating, evaluation_progress_path(self.folder)):
                found |= {"state": "evaluating", "step": evaluating.get("step")}
                found["memory"] = evaluating.get("memory")
            return found
        ended = told.get("doing") in (None, "stopped", "finished")
        if ended or not self._is_alive(told, progress_path(self.folder)):
            return found | {"state": "stopped"}
        found |= {"state": told["doing"], "stage": told.get("stage", stage)}
        found |= {"round": max(played, told.get("round", 0)), "step": told.get("step")}
        found["memory"] = told.get("memory") or _memory_of(told)
        found["seconds_left"] = self._seconds_left(found, told)
        return found

    def _seconds_left(self, found: dict[str, Any], told: dict[str, Any]) -> float | None:
        """Return the time that the stage still takes, by its last rounds or by the one it is in."""
        place, step = found["round"], found["step"] or {}
        if not self._seen or self._seen[-1][1] != place:
            self._seen.append((time.monotonic(), place))
        pace = told.get("seconds_per_round") if told.get("stage_round") else None
        if pace is None and len(self._seen) > 2 and self._seen[0][1] < place:
            # Under secure noise no timings are written: take those that were seen from here.
            pairs = [(one, two) for one, two in pairwise(self._seen) if two[1] > one[1]]
            pace = median((two[0] - one[0]) / (two[1] - one[1]) for one, two in pairs)
        left = (told.get("stage_of") or 0) - (told.get("stage_round") or 0)
        if pace is not None:
            found["step"] = None if pace < _SHORT_SECONDS else found["step"]
            return float(pace * left)
        if step.get("of", 0) > 1 and step.get("done") and "seconds" in step:
            return float(step["seconds"] * (step["of"] - step["done"]) / step["done"] * left)
        return None

    def _newest(self) -> dict[str, Any] | None:
        """Return the newest and the best Hits@k, for the largest k up to 20, and its interval."""
        if not self.looks:
            return None
        k = max((k for k in self.looks if int(k) <= 20), key=int, default=min(self.looks, key=int))
        points, ends = self.looks[k]
        best = max(points, key=lambda point: point[1])
        (at, share), (best_at, best_share) = points[-1], best
        found = {"k": int(k), "round": at, "hits": share, "interval": ends.get(at)}
        return found | {"best_round": best_at, "best": best_share}

    def _privacy(self, config: dict[str, Any], *, ended: bool) -> dict[str, Any]:
        counted = self._ledger.read()
        delta = config.get("delta")
        delta = delta if isinstance(delta, float) and 0 < delta < 1 else 1e-6
        spent = self._spent.epsilon(counted.noised, delta, at_once=ended)
        epsilon, is_all = spent.epsilon, spent.releases == counted.noised.releases
        promised = counted.noised == counted.all and counted.kinds <= {"secure"}
        return {
            "releases": counted.all.releases,
            "noised_releases": counted.noised.releases,
            "epsilon": epsilon if promised and is_all and not self._ledger.is_behind else None,
            "epsilon_of_mechanism": epsilon,
            "epsilon_of_releases": spent.releases,
            "problem": spent.problem,
            "is_behind": self._ledger.is_behind,
            "delta": delta,
            "target": config.get("epsilon"),
            "noise": "seeded" if "seeded" in counted.kinds else
            "secure" if "secure" in counted.kinds else "none",
        }  # fmt: skip

    def _is_alive(self, told: dict[str, Any], path: Path) -> bool:
        """Return whether the process that wrote a progress file still runs."""
        if told.get("machine") != platform.node():
            return age_of(path, time.time()) < _FRESH_SECONDS
        pid = told.get("pid")
        return isinstance(pid, int) and pid > 0 and is_alive(pid, told.get("process"))

    def _resume_line(self, found: dict[str, Any]) -> str | None:
        if found["state"] != "stopped":
            return None
        words = ["privrec", "train", str(found["recipe"]), "--out", found["run"], "--resume"]
        return shlex.join(words)


def _told(file: SmallFile) -> dict[str, Any]:
    """Return what a progress file tells; nothing if there is none."""
    told = {key: value for key, value in (file.read() or {}).items() if value is not None}
    if fault := fault_in(told, Progress):
        raise RunFolderError(f"{file.path} {fault}")
    return told


def _is_figure(value: object) -> bool:
    """Return whether a value is a number that can be drawn; larger ones overflow."""
    return isinstance(value, int | float) and abs(value) < 1e300


def _memory_of(told: dict[str, Any]) -> dict[str, int] | None:
    """Return the memory of a process on this machine, where the system tells it."""
    if told.get("machine") != platform.node():
        return None
    try:
        text = Path(f"/proc/{told['pid']}/status").read_text(encoding="utf-8")
        sizes = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        now, peak = (1024 * int(sizes[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return {"now": now, "peak": peak}
