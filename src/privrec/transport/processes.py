"""Child processes that end when their parent process ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def child(
    module: str, arguments: Sequence[str], *, log: Path, patience: float = 5.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs `module` and writes its output to `log`; end it with the context.

    The input of the process is a pipe, which closes when the parent process ends, even by a crash:
    see `end_with_parent`. After `patience` seconds, a process that does not end is killed.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as output:
        process = subprocess.Popen(  # noqa: S603 (the command is our own interpreter and module)
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def end_with_parent(*, grace: float) -> None:
    """Kill this process when its input closes: at once, or `grace` seconds after a SIGTERM."""
    threading.Thread(target=_await_parent, args=(grace,), daemon=True, name="parent").start()


def _await_parent(grace: float) -> None:
    while os.read(0, 1):
        pass
    if grace > 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)
