"""The cost of one round for one phone: bytes down and up, arithmetic, and time on one core.

Also the check that a run fits into the free memory of this machine.
"""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Stage
from privrec.core.training import LocalTrain, Packed, jit_in_place
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bags
from privrec.data.text import in_gb
from privrec.errors import SettingsError
from privrec.types import IntArray, Params

_REPEATS = 5
"""The number of timed calls of which the median is taken. Chosen by hand."""
_PEOPLE = 10_000
"""The largest number of people of whom a median is computed. Reading ten million people would take
minutes, and the median would hardly differ."""
_NUMBER = 4
"""The bytes of one number that is sent: float32 or int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """The cost of one round (or of ranking) for one person with the median amount of data.

    `multiply_adds` is exact, or the compiler's estimate, or None if unknown. `milliseconds` is
    measured on one core of this machine, after a first call.
    """

    what: str
    bytes_down: int
    bytes_up: int
    multiply_adds: int | None
    milliseconds: float


def usual_person(federation: Federation, people: IntArray) -> IntArray:
    """Return the position of the person with the median number of interactions, shape (1,).

    Of more than `_PEOPLE` people, at most this many, evenly spaced, are considered.
    """
    people = people[:: -(-len(people) // _PEOPLE) or 1]
    sizes = np.concatenate([federation.take(part).sizes for part in chunks(people)])
    order = np.argsort(sizes, kind="stable")
    return people[order[len(order) // 2 : len(order) // 2 + 1]]


def cost_of_training(
    what: str,
    local: LocalTrain,
    params: Params,
    catalogue: Bags,
    client: Packed,
    *,
    steps: int,
    told: Params,
) -> DeviceCost:
    """Return the cost of local training for a phone.

    The phone downloads all arrays in `told`, because a request for some rows would reveal which
    items the person has. It uploads the dense parameters and the table rows that it changed. The
    compiler counts the operations of the loop's body once, so the count is multiplied by `steps`.
    """
    core = jax.local_devices()[0]
    here = jax.device_put((dict(params), dict(catalogue), client), core)
    compiled = jit_in_place(local).lower(*here).compile()

    def train_once() -> None:
        compiled(*here).loss.block_until_ready()

    rows = int((np.asarray(client.rows) < len(params[ITEM_TABLE])).sum())
    width = params[ITEM_TABLE].shape[1]
    dense = sum(value.size for name, value in params.items() if name != ITEM_TABLE)
    return DeviceCost(
        what=what,
        bytes_down=_NUMBER * sum(value.size for value in told.values()),
        bytes_up=_NUMBER * (dense + rows * (width + 1)),
        multiply_adds=int(_flops(compiled) / 2 * max(steps, 1)),
        milliseconds=milliseconds(train_once),
    )


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call, after a first call that is not timed."""
    call()
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _flops(compiled: Any) -> float:
    found = compiled.cost_analysis() or {}
    first = found[0] if isinstance(found, list) else found
    return float(first.get("flops", 0.0))


_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
NOISE_COPIES = 14
"""The number of float32 arrays, each as large as the sum, that need as much memory as the noise,
its intermediate arrays and the noised sum."""
_MATRIX_ROWS = 1536
"""The rows of the matrices whose product measures the speed, in about a quarter of a second. Chosen
by hand."""


def check_memory(stages: Iterable[Stage]) -> None:
    """Raise if a stage needs more memory than is free; pass if one of the two is unknown.

    A node does not call this function: it has the same stages, but not the server's matrices.
    """
    free = available_memory()
    for stage in stages:
        work = None if stage.work is None else stage.work(None)
        if free is not None and work is not None and work.bytes > free:
            raise SettingsError(
                f"{work.what} needs about {in_gb(work.bytes)} of memory and {in_gb(free)} are"
                f" free; {work.instead(free)}"
            )


def training_bytes(params: int, others: int, *, noised: bool) -> int:
    """Return the bytes of memory that rounds of training need.

    `params` and `others` are the bytes of the parameters and of the optimizer's state. Each core
    needs the parameters, a running sum, and a copy of this sum to be added up. The server needs the
    total, and the parameters and the optimizer's state before and after a step.
    """
    copies: int = 3 * jax.local_device_count() + 3 + (NOISE_COPIES if noised else 0)
    return copies * params + 2 * others


def most(bytes_of: Callable[[int], float], free: int, upper: int) -> int:
    """Return the largest count below `upper` that needs at most `free` bytes, cut to two digits.

    `bytes_of` must be an increasing function. The result is 0 if even a count of 1 needs more.
    """
    low, high = 0, upper
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= free else (low, middle)
    digits = max(0, len(str(low)) - 2)
    return int(low // 10**digits * 10**digits)


def available_memory() -> int | None:
    """Return the bytes that a new process could use without swapping; None if unknown."""
    known = [found for found in (_free_of_machine(), _free_of_group()) if found is not None]
    return min(known, default=None)


def process_memory() -> int:
    """Return the bytes of memory that this process has now."""
    try:
        pages = int((_PROC / "self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        # Without /proc, only the peak is known: in bytes on macOS, else in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def multiply_speed() -> float:
    """Return the multiply-adds per second of a product of two matrices in 32 bits."""
    matrix = np.ones((_MATRIX_ROWS, _MATRIX_ROWS), np.float32)
    np.matmul(matrix, matrix)
    started = time.perf_counter()
    np.matmul(matrix, matrix)
    return _MATRIX_ROWS**3 / (time.perf_counter() - started)


def _free_of_machine() -> int | None:
    try:
        lines = (_PROC / "meminfo").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split(":", 1) for line in lines if ":" in line)
        return 1024 * int(sizes["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _free_of_group() -> int | None:
    """Return the free bytes under the limits of this process's control groups, or None."""
    try:
        lines = (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    known = []
    for line in lines:
        number, kinds, inside = line.split(":", 2)
        if number == "0":  # Version 2.
            root, limit, used = _GROUPS, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit, used = _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # The limits of all parent groups hold, too. In a container, the own group may be hidden.
        place = root / inside.lstrip("/")
        around = [group for group in (place, *place.parents) if group.is_relative_to(root)]
        known += [_left(group, limit, used) for group in around]
    return min((found for found in known if found is not None), default=None)


def _left(group: Path, limit: str, used: str) -> int | None:
    """Return the free bytes of a group: its limit minus what is used.

    Cached pages of files do not count as used, because the kernel can free them.
    """
    try:
        allowed = (group / limit).read_text(encoding="ascii").strip()
        now = int((group / used).read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split() for line in stat)
        given_back = int(sizes.get("total_inactive_file", sizes.get("inactive_file", 0)))
        return None if allowed == "max" else max(0, int(allowed) - now + given_back)
    except (OSError, ValueError):
        return None
