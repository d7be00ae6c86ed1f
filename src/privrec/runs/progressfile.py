"""`simulation/progress.json`: how far a training is, and `evaluating.json` for an evaluation.

Each is written a few times a second at most, under a temporary name that is then renamed. It is not
flushed to the disk, because nothing depends on it.
"""

import contextlib
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privrec.runs.records import SIMULATION, RunFolder, temporary_name

WRITE_SECONDS = 0.25
"""The least time between two writes. Chosen by hand: a page asks once a second."""
Clock = Callable[[], float]


def progress_path(folder: RunFolder) -> Path:
    """Return where a training says how far it is."""
    return folder.path / SIMULATION / "progress.json"


def evaluation_progress_path(folder: RunFolder) -> Path:
    """Return where an evaluation says how far it is, while it lasts."""
    return folder.path / SIMULATION / "evaluating.json"


class ProgressFile:
    """Writes what is known to one file, not more often than `WRITE_SECONDS`.

    A file that cannot be written is left alone: a training must not fail because of it.
    """

    def __init__(self, path: Path, *, clock: Clock = time.monotonic) -> None:
        """Nothing is written yet."""
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._written: float | None = None
        self._who = {
            "pid": os.getpid(),
            "process": process_mark(os.getpid()),
            "machine": platform.node(),
            "began": round(time.time(), 3),
        }

    def write(self, content: dict[str, Any], *, now: bool = False) -> None:
        """Write the content, unless something was written just before and it can wait."""
        with self._lock:
            time_now = self._clock()
            if not now and self._written is not None and time_now - self._written < WRITE_SECONDS:
                return
            self._written = time_now
            temporary = temporary_name(self._path)
            with contextlib.suppress(OSError):
                text = json.dumps({**self._who, **content}) + "\n"
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(self._path)

    def remove(self) -> None:
        """Remove the file."""
        with self._lock, contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_alive(pid: int, mark: object) -> bool:
    """Return whether the process with this number and mark still runs on this machine."""
    if (now := process_mark(pid)) is not None or Path("/proc/self").is_dir():
        return now is not None and now == mark
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def process_mark(pid: int) -> str | None:
    """Return what tells a process from a later one with the same number; None if unknown.

    It is the time at which the process began, in ticks since the machine did.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is a name in brackets, which may contain spaces and brackets.
    return stat.rpartition(")")[2].split()[19]
