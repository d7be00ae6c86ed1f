"""Reports the progress of a training to a callback, and writes it to a file for `privrec watch`.

Under secure noise without `diagnostics`, the file has no timings, counts of people or memory
figures, gives steps inside a round in per cent, and is removed at the end.
"""

import contextlib
import itertools
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from privrec.core.phase import TRAIN, Stage
from privrec.core.round import tell_nobody
from privrec.runs.folder import WRITE_SECONDS, Clock, ProgressFile, RunFolder
from privrec.simulate.cost import process_memory
from privrec.types import OnProgress

LONG_ROUND_SECONDS = 1.0
"""A callback gets steps only this many seconds after a round began: in shorter rounds the bar would
flicker."""
_ROUNDS = 20
"""The speed is computed from this many rounds. Chosen by hand."""


class Progress:
    """The progress of a training. Any thread may report steps inside a round."""

    def __init__(
        self,
        folder: RunFolder,
        stages: Sequence[Stage],
        on_progress: OnProgress | None,
        *,
        figures: bool,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start the report; `figures` is whether timings and counts may be written."""
        self._tell, self._figures, self._clock = on_progress or tell_nobody, figures, clock
        self._file = ProgressFile(folder.progress_path, clock=clock)
        self._ends: deque[float] = deque(maxlen=_ROUNDS + 1)
        self._stage, self._first, self._last = "", 0, 0
        self._round_began = clock()
        self._told: dict[str, float] = {}
        self._shown: dict[str, int] = {}
        self._now: dict[str, Any] = {
            "stages": [stage.name for stage in stages],
            "of": sum(stage.rounds for stage in stages),
            "doing": "starting",
        }
        self._write(now=True)

    def begin_stage(self, stage: Stage, *, played: int, last: int) -> None:
        """Report that a stage begins after `played` rounds; it may play up to round `last`."""
        self._stage, self._first, self._last = stage.name, stage.first, last
        self._ends.clear()
        self._now |= {"doing": "compiling", "stage": stage.name, "round": played}
        self._now |= {"stage_round": played - stage.first, "stage_of": last - stage.first}
        # Rounds that the budget does not allow are not counted.
        self._now["of"] -= stage.last - last
        self._write(now=True)

    def compiling(self, done: int) -> None:
        """Report that the programs of a stage are being compiled (0) or are compiled (1)."""
        self._tell("compiling", done, 1)

    def begin_round(self) -> None:
        """Report that a round begins."""
        self._round_began = self._clock()
        self._now |= {"doing": "training", "step": None}
        if not self._ends:
            self._ends.append(self._round_began)
        self._write()

    def step(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` units of a step inside a round are done.

        A report is dropped if the last one with the same `what` is less than `WRITE_SECONDS` old.
        """
        now = self._clock()
        if what in self._told and now - self._told[what] < WRITE_SECONDS:
            return
        self._told[what] = now
        if not self._figures and total != 1:
            done, total = round(100 * done / max(total, 1)), 100
        self._now["step"] = {"what": what, "done": done, "of": total}
        if self._figures:
            self._now["step"]["seconds"] = round(now - self._round_began, 3)
        self._write(now=True)
        if now - self._round_began > LONG_ROUND_SECONDS:
            self._tell(what, done, total)
            self._shown[what] = total

    def end_round(self, played: int) -> None:
        """Report that a round is over; `played` rounds of the stage are done."""
        self._ends.append(self._clock())
        self._now |= {"round": self._first + played, "stage_round": played, "step": None}
        if self._figures:
            # The median, because the first round may include a compilation.
            times = [after - before for before, after in itertools.pairwise(self._ends)]
            self._now["seconds_per_round"] = round(statistics.median(times), 4)
        self._write()
        shown, self._shown = self._shown, {}
        for what, total in shown.items():
            # Report the end of a step, because its last report may have been dropped.
            self._tell(what, total, total)
        what = "rounds" if self._stage == TRAIN else f"rounds for {self._stage}"
        self._tell(what, played, self._last - self._first)

    def end(self, *, finished: bool) -> None:
        """Report that the training is finished, or that an error or Ctrl-C stopped it.

        The file is removed if the training failed before its first stage, or if it is finished and
        its timings may not be written.
        """
        if not self._stage or (finished and not self._figures):
            self._file.remove()
            return
        self._now |= {"doing": "finished" if finished else "stopped", "step": None}
        self._write(now=True)

    def _write(self, *, now: bool = False) -> None:
        self._file.write(self._now | (_memory() if self._figures else {}), now=now)


@contextlib.contextmanager
def progress_of(
    folder: RunFolder, stages: Sequence[Stage], on_progress: OnProgress | None, *, figures: bool
) -> Iterator[Progress]:
    """Yield the `Progress` of a training, and record in its file how the training ended."""
    progress = Progress(folder, stages, on_progress, figures=figures)
    try:
        yield progress
    except BaseException:
        progress.end(finished=False)
        raise
    progress.end(finished=True)


def _memory() -> dict[str, object]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = peak if sys.platform == "darwin" else 1024 * peak
    return {"memory": {"now": process_memory(), "peak": peak}}
