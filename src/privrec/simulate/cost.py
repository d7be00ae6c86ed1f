"""What one round costs one phone: bytes down and up, arithmetic, and time on one core.

What this machine has: free memory and speed; and the check that a run fits into the memory.
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
"""How often a call is timed. Chosen by hand."""
_PEOPLE = 10_000
"""How many people the median is taken of: reading ten million would take minutes, for a median that
hardly differs."""
_NUMBER = 4
"""Bytes of a weight (float32), and of a position (int32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """The cost of one round (or of ranking) for one person with the median amount of data.

    `multiply_adds` is exact, or the compiler's estimate, or None if unknown. `milliseconds` is
    measured on this machine, on one core, after a first call.
    """

    what: str
    bytes_down: int
    bytes_up: int
    multiply_adds: int | None
    milliseconds: float


def usual_person(federation: Federation, people: IntArray) -> IntArray:
    """Return the position (one entry) of the person with the median number of interactions.

    Where there are more than `_PEOPLE`, the median is that of as many, evenly spaced.
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
    """Return what local training costs a phone.

    The phone downloads all that is told, because a request for some rows would reveal which items
    the person has. It uploads the dense parameters and the rows that it changed. The compiler
    counts the body of the loop once, so its count is multiplied by the number of steps.
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
    """Return the median time of a call, after one call to warm up."""
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
"""Arrays of float32 that take as much as the noise, its parts and the noised sum."""
_MATRIX_ROWS = 1536
"""Rows of the matrices whose product measures the speed: a quarter of a second. Chosen by hand."""


def check_memory(stages: Iterable[Stage]) -> None:
    """Raise if a stage needs more memory than is free, where both are known.

    Whoever trains, or serves a federation, calls it before any file is written. A node does not:
    what it builds are the same stages, but the server's matrices are not its own.
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
    """Return the memory of rounds of training, given the bytes of parameters and of other state.

    Each core has the parameters, a running sum and what it is added up from; the server has the
    sum, and the parameters and the state before and after a step. Noise is drawn in 64 bits, of
    which there are some copies.
    """
    copies: int = 3 * jax.local_device_count() + 3 + (NOISE_COPIES if noised else 0)
    return copies * params + 2 * others


def most(bytes_of: Callable[[int], float], free: int, upper: int) -> int:
    """Return the largest count below `upper` that needs at most `free` bytes, to two digits.

    `bytes_of(count)` must not fall. 0 if even 1 needs more.
    """
    low, high = 0, upper
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= free else (low, middle)
    digits = max(0, len(str(low)) - 2)
    return int(low // 10**digits * 10**digits)


def available_memory() -> int | None:
    """Return the bytes that a new process could take without swapping; None if unknown."""
    known = [found for found in (_free_of_machine(), _free_of_group()) if found is not None]
    return min(known, default=None)


def process_memory() -> int:
    """Return the bytes of memory that this process has now."""
    try:
        pages = int((_PROC / "self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        # Elsewhere only the largest size so far is known: in bytes on macOS, else in kilobytes.
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
    """Return what the control groups of this process leave, or None without a limit."""
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
        # A group is limited by the groups around it too. In a container its own may not be seen.
        place = root / inside.lstrip("/")
        around = [group for group in (place, *place.parents) if group.is_relative_to(root)]
        known += [_left(group, limit, used) for group in around]
    return min((found for found in known if found is not None), default=None)


def _left(group: Path, limit: str, used: str) -> int | None:
    """Return limit - used of a group; pages of files that can be given back do not count."""
    try:
        allowed = (group / limit).read_text(encoding="ascii").strip()
        now = int((group / used).read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        sizes = dict(line.split() for line in stat)
        given_back = int(sizes.get("total_inactive_file", sizes.get("inactive_file", 0)))
        return None if allowed == "max" else max(0, int(allowed) - now + given_back)
    except (OSError, ValueError):
        return None
