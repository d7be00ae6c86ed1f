"""What one round costs one phone: bytes down and up, arithmetic, and time on one core."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from privrec.core.local import LocalTrain, Packed, jit_in_place
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bags
from privrec.models.api import ITEM_TABLE
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
    steps: int,
) -> DeviceCost:
    """Return what local training costs a phone.

    The phone downloads all parameters, because a request for some rows would reveal which items
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
        bytes_down=_NUMBER * sum(value.size for value in params.values()),
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
