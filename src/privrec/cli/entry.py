"""The start of the `privrec` script. It imports little, so that an early Ctrl-C prints one line."""

import os
import signal
import sys
import threading
from io import TextIOWrapper
from types import FrameType

_STOPPED = 130
_AGAIN = 0.05
"""Seconds after which a lost Ctrl-C is raised again. This repeats until it takes effect, because a
signal that arrives just before a wait does not end the wait. Chosen by hand."""
_IMPORT = "<frozen importlib._bootstrap>"
"""The file name of Python's own code that imports modules."""
_PATIENCE = 1.0
"""Seconds after Ctrl-C until a command that still computes says so. Chosen by hand."""


def main() -> None:
    """Run the command line."""
    try:
        handle_interrupts()
        from privrec.cli.app import app

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # If the terminal cannot show a character, print a question mark instead of failing.
                stream.reconfigure(errors="replace")
        app()
    except KeyboardInterrupt:
        sys.stderr.write("privrec: stopped\n")
        sys.exit(_STOPPED)


def handle_interrupts() -> None:
    """Make sure that no Ctrl-C is lost and that a second Ctrl-C ends the process at once.

    Python runs a signal's handler only between two of its own instructions, but a JAX computation
    or compilation can take minutes. So Python's low-level signal handler writes the number of each
    signal to a pipe at once, and a thread reads the pipe.

    Python drops exceptions that are raised during garbage collection or in `__del__`, and JAX adds
    a function to each garbage collection. A Ctrl-C at that moment would be lost. During an import,
    Ctrl-C can crash the process, because compiled code of JAX does not expect an exception. In both
    cases Ctrl-C is raised again after `_AGAIN` seconds.
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
        new = numbers.count(signal.SIGINT)  # The pipe also carries other signals.
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
