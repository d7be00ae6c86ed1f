"""Ctrl-C: what is kept of a stopped command, and how to go on. A second one ends at once."""

import os
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from privrec.cli.console import EXIT_STOPPED, NOTHING_KEPT

_SHOW_CURSOR = "\x1b[?25h"
_AGAIN = 0.05
"""Seconds after which a dropped Ctrl-C comes again, until it is raised: a signal just before a wait
does not end the wait. Chosen by hand."""
_IMPORT = "<frozen importlib._bootstrap>"
"""Where Python's own code lies that imports modules."""
_PATIENCE = 1.0
"""Seconds after which a command that still computes says so. Chosen by hand."""


def end_at_second_interrupt() -> None:
    """From now on a second Ctrl-C ends this process at once, even inside a long computation.

    Python handles a signal only between two steps of its own, and a sum or a compilation can take
    minutes. So a thread is told of each signal by the system, through a pipe.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_count, args=(reading,), daemon=True).start()


def keep_interrupts() -> None:
    """From now on a Ctrl-C where nobody can catch it comes again, a moment later.

    Python drops what is raised while it collects garbage or calls `__del__`, and JAX has it call a
    function at each collection. The command would go on as if nothing had happened. Raised in an
    import, it can end the process: compiled parts of JAX do not expect it.
    """
    if not hasattr(signal, "setitimer"):  # Windows.
        return
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)
    usual = sys.unraisablehook

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
        else:
            usual(what)

    sys.unraisablehook = dropped


def _interrupt(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


def _count(pipe: int) -> None:
    seen = 0
    while numbers := os.read(pipe, 64):
        new = numbers.count(signal.SIGINT)  # The pipe has other signals, too.
        seen += new
        if seen >= 2:
            _say(f"{_SHOW_CURSOR if sys.stderr.isatty() else ''}privrec: ended\n")
            os._exit(EXIT_STOPPED)
        if new and seen == 1:
            late = threading.Timer(_PATIENCE, _say, ["privrec: stopping; Ctrl-C again ends it\n"])
            late.daemon = True
            late.start()


def _say(text: str) -> None:
    os.write(2, text.encode())


def training_stopped(recipe: str, path: Path) -> str:
    """Return what a stopped training says: how far it came and how to go on."""
    from privrec.errors import PrivrecError
    from privrec.runs.folder import RunFolder, is_untouched, played_rounds

    folder = RunFolder(path=path)
    try:
        if not folder.config_path.is_file() or is_untouched(path):
            return NOTHING_KEPT
        saved = played_rounds(folder)
    except PrivrecError:
        return f"stopped; {path} has what is kept"
    words = ["privrec", "train", recipe, "--out", str(path), "--resume"]
    return f"stopped at round {saved}; go on with: {shlex.join(words)}"


def federation_stopped(folder: Path, go_on: str) -> str:
    """Return what a stopped server says; `go_on` is what to do next."""
    from privrec.errors import PrivrecError
    from privrec.protocol.enrolment import ServerFolder
    from privrec.runs.folder import RunFolder, played_rounds

    try:
        saved = played_rounds(RunFolder(path=ServerFolder(path=folder).run))
    except PrivrecError:
        saved = 0
    return f"stopped at round {saved}; {go_on}"


EXPERIMENTS_STOPPED = "stopped; what is trained is kept, and the same command goes on from there"
"""What a command says that trains several runs in a folder."""
