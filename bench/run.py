"""Runs the benchmarks, or the one named on the command line; prints a table, writes bench.json."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import privrec  # noqa: F401  (sets up the host devices before JAX is imported)
from crowd import many_nodes
from device import device
from engine import engine
from federation import exchanges, masking, two_nodes
from few_people import few_people
from figures import Figure
from floods import floods
from large import large, ten_times_the_items
from maml import maml
from meta import meta
from new_items import new_items
from plus import cohorts
from private import accounting, private_round
from scale import catalogue, memory, population
from stage_one import stage_one
from watch import watch

BENCHMARKS: dict[str, Callable[[], list[Figure]]] = {
    "engine": engine,
    "maml": maml,
    "meta": meta,
    "population": population,
    "catalogue": catalogue,
    "memory": memory,
    "ten-times-the-items": ten_times_the_items,
    "large": large,
    "stage-one": stage_one,
    "cohorts": cohorts,
    "few-people": few_people,
    "new-items": new_items,
    "private-round": private_round,
    "accounting": accounting,
    "exchanges": exchanges,
    "masking": masking,
    "two-nodes": two_nodes,
    "many-nodes": many_nodes,
    "floods": floods,
    "watch": watch,
    "device": device,
}


def main(only: list[str]) -> int:
    unknown = [name for name in only if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in only or BENCHMARKS:
        found = BENCHMARKS[name]()
        figures += found
        for figure in found:
            ratio = figure.value / figure.against_value
            print(
                f"{figure.name}: {figure.value:,.4g} {figure.unit},"
                f" {ratio:.3g} times {figure.against} ({figure.against_value:,.4g})",
                flush=True,
            )
    Path("bench.json").write_text(json.dumps([f.as_json() for f in figures], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
