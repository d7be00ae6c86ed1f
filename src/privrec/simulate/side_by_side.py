"""Parallel calls of a function, each in its own process on one core."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread, current_thread, main_thread
from typing import Any

from privrec.errors import RunFolderError

_ONE_CORE = {
    "JAX_NUM_CPU_DEVICES": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(
    function: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    *,
    workers: int,
    advance: Callable[[], None],
) -> None:
    """Call a function with each of the arguments, in new processes; `advance` after each call.

    Each process has one JAX device and one thread for an operation. If a call raises, calls that
    have not begun are cancelled, and this function raises the error.
    """
    # "spawn", because a fork would copy JAX's threads in an unknown state.
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        with _for_new_processes():
            started = [pool.submit(function, *given) for given in arguments]
        try:
            for future in as_completed(started):
                future.result()
                advance()
        except BrokenProcessPool as error:
            raise RunFolderError(
                "a process that trained has ended, perhaps for lack of memory:"
                " run the command again to go on, with fewer at a time (--workers, --jobs)"
            ) from error
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when its parent process ends, even if the parent was killed.

    Otherwise a worker would train on in a run folder that a new attempt needs.
    """
    Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _for_new_processes() -> Iterator[None]:
    """Make processes that begin in this block use one core each and ignore Ctrl-C.

    A terminal sends Ctrl-C to all processes. Workers ignore it, because each would print a
    traceback; this process ends them. Only a main thread can set signal handlers.
    """
    before = {name: os.environ[name] for name in _ONE_CORE if name in os.environ}
    is_main = current_thread() is main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    os.environ.update(_ONE_CORE)
    try:
        yield
    finally:
        for name in _ONE_CORE:
            del os.environ[name]
        os.environ.update(before)
        if is_main:
            signal.signal(signal.SIGINT, handler)
