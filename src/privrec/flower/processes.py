"""Child processes that end with their parent, and the environment that Flower needs."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Flower reads these when it is first imported.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def private_folder(path: Path) -> Path:
    """Return the folder `path`, made if needed, which only this account can read."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def prepare(folder: Path) -> None:
    """Set what Flower reads from the environment; call this before Flower is imported."""
    os.environ.update(ENVIRONMENT)
    os.environ["FLWR_HOME"] = str(private_folder(folder / "home"))
    # A proxy must never see what two processes of one machine say to each other.
    local = {"127.0.0.1", "localhost"}
    for name in ("NO_PROXY", "no_proxy"):
        found = {part for part in os.environ.get(name, "").split(",") if part}
        os.environ[name] = ",".join(sorted(found | local))


def write_secret(path: Path) -> bytes:
    """Return a new secret, also written to `path`, which only this account can read."""
    secret = secrets.token_hex(32).encode("ascii")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
    return secret


@contextlib.contextmanager
def child(
    module: str, arguments: Sequence[str], *, log: Path, patience: float = 5.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that runs `module`, writes to `log`, and ends with the context.

    Its input is a pipe that closes when this process ends in any way: see `end_with_parent`.
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
    """End this process when its input closes: at once, or `grace` seconds after a SIGTERM."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        if grace > 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent").start()
