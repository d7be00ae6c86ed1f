"""The setup of JAX for privrec: one host device per core, and a persistent compilation cache."""

import contextlib
import os
import sys
from pathlib import Path


def prepare() -> None:
    """Set the options that JAX reads when it is first imported or used; the user's own values stay.

    A client's training is a sequence of small matrix products. It is fastest on a single core, with
    another client on the next core. So XLA gets one device per core and no threads inside an
    operation.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores or 1))
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "privrec" / "compiled"
    )
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    if "jax" in sys.modules:
        _prepare_imported()


def _prepare_imported() -> None:
    """Set the same options if JAX was imported before privrec, unless JAX was already used."""
    config = sys.modules["jax"].config
    settings = {
        "jax_num_cpu_devices": (-1, int(os.environ["JAX_NUM_CPU_DEVICES"])),
        "jax_compilation_cache_dir": (None, os.environ["JAX_COMPILATION_CACHE_DIR"]),
        "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    }
    for name, (untouched, wanted) in settings.items():
        if getattr(config, name) == untouched:
            with contextlib.suppress(RuntimeError):
                config.update(name, wanted)
