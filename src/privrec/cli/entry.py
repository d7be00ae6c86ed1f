"""Where the `privrec` script begins. It imports little: Ctrl-C is one line from the start on."""

import os
import signal
import sys
import threading
from io import TextIOWrapper
from types import FrameType

_STOPPED = 130
_AGAIN = 0.05
"""Seconds after which a dropped Ctrl-C comes again, until it is raised: a signal just before a wait
does not end the wait. Chosen by hand."""
_IMPORT = "<frozen importlib._bootstrap>"
"""Where Python's own code lies that imports modules."""
_PATIENCE = 1.0
"""Seconds after which a command that still computes says so. Chosen by hand."""


def main() -> None:
    """Run the command line."""
    try:
        handle_interrupts()
        from privrec.cli.app import app

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # A terminal of another encoding gets a question mark and not a traceback.
                stream.reconfigure(errors="replace")
        app()
    except KeyboardInterrupt:
        sys.stderr.write("privrec: stopped\n")
        sys.exit(_STOPPED)


def handle_interrupts() -> None:
    """From now on no Ctrl-C is lost, and a second one ends this process at once.

    Python handles a signal only between two steps of its own, and a sum or a compilation can take
    minutes. So a thread is told of each signal by the system, through a pipe.

    Python drops what is raised while it collects garbage or calls `__del__`, and JAX has it call a
    function at each collection: the command would go on as if nothing had happened. Raised in an
    import, Ctrl-C can end the process: compiled parts of JAX do not expect it. In both places it
    comes again, a moment later.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_count_interrupts, args=(reading,), daemon=True).start()
    if hasattr(signal, "setitimer"):  # Not on Windows.
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)
        sys.unraisablehook = _dropped


def _dropped(dropped: "sys.UnraisableHookArgs") -> None:
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
    else:
        sys.__unraisablehook__(dropped)


def _interrupt(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN, _AGAIN)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt


def _count_interrupts(pipe: int) -> None:
    count = 0
    while numbers := os.read(pipe, 64):
        new = numbers.count(signal.SIGINT)  # The pipe has other signals, too.
        count += new
        if count >= 2:
            _say("privrec: ended\n")
            os._exit(_STOPPED)
        if new:
            late = threading.Timer(_PATIENCE, _say, ["privrec: stopping; Ctrl-C again ends it\n"])
            late.daemon = True
            late.start()


def _say(text: str) -> None:
    os.write(2, text.encode())
