"""Functions for other processes; they import as little as they need."""

import os
import time
from pathlib import Path

from privrec.errors import SettingsError


def say_devices(place: str) -> None:
    """Write the number of JAX devices, of threads, and of the process."""
    import jax

    text = f"{jax.local_device_count()} {os.environ['OMP_NUM_THREADS']} {os.getpid()}"
    Path(place).write_text(text, encoding="utf-8")


def fail(text: str) -> None:
    raise SettingsError(text)


def end(code: int) -> None:
    os._exit(code)


def sleep(place: str) -> None:
    """Write the number of the process, then wait longer than any test."""
    Path(place).write_text(f"{os.getpid()}", encoding="utf-8")
    time.sleep(600)
