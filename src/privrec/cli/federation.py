"""What `privrec federate` shows: the terms, a live table of nodes, traffic and results."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from privrec.cli.console import err, print_json, print_line, print_table

if TYPE_CHECKING:
    from privrec.flower.seen import Seen
    from privrec.flower.terms import Terms


def terms_line(terms: "Terms") -> str:
    """Return the terms in one line."""
    sums = "secure sums" if terms.secure_sum else "plain sums"
    noise = ""
    if terms.settings.budget.mechanism != "none":
        noise = f", noise from {'the nodes' if terms.noise_from == 'nodes' else 'the server'}"
    return (
        f"federation {terms.fingerprint[:16]}: {terms.settings.recipe}, {len(terms.members)} nodes,"
        f" {terms.people:,} people, {sums}{noise}, TLS, authenticated nodes"
    )


@contextlib.contextmanager
def live_table(terms: "Terms", shown: bool) -> Iterator[Callable[["Seen"], None]]:
    """Yield what draws a live table of the nodes, or prints a line a round without a terminal."""
    began, last = time.monotonic(), [-1]
    if not shown or not sys.stderr.isatty():

        def say(seen: "Seen") -> None:
            if shown and seen.round_index != last[0] and not seen.step.startswith("waiting"):
                last[0] = seen.round_index
                print_line(f"round {seen.round_index}, {time.monotonic() - began:.0f} s")

        yield say
        return
    with Live(console=err, transient=True, refresh_per_second=4) as live:

        def draw(seen: "Seen") -> None:
            title = f"round {seen.round_index}: {seen.step} ({time.monotonic() - began:.0f} s)"
            table = Table("node", "people", "last", title=title, title_justify="left")
            for number, member in enumerate(terms.members[:40]):
                table.add_row(str(number), f"{member.people:,}", seen.state.get(number, ""))
            live.update(table)

        yield draw


def say_terms(folder: Path, terms: Path) -> None:
    """Print what the owner of a node agrees to by starting it."""
    from privrec.algorithms.recipes import settings_of
    from privrec.data.catalogue import from_json
    from privrec.flower import terms as agreed
    from privrec.flower.bound import bind, promised
    from privrec.flower.enrolment import NodeFolder
    from privrec.privacy.words import epsilon_text

    if not terms.is_file() or not NodeFolder(path=folder).catalogue.is_file():
        return  # The next step says what is missing.
    known = agreed.from_json(terms.read_bytes(), str(terms), settings_of)
    place = NodeFolder(path=folder)
    text = place.catalogue.read_text(encoding="utf-8")
    epsilon, hostile = promised(known, bind(known, from_json(text, str(folder))).phases())
    print_line(terms_line(known))
    delta = known.settings.budget.delta
    against = "no guarantee" if hostile == float("inf") else f"epsilon {epsilon_text(hostile)}"
    if epsilon == float("inf"):
        print_line("against who sees the model: no guarantee; against the server: no guarantee")
    else:
        print_line(
            f"against who sees the model: epsilon {epsilon_text(epsilon)} at delta {delta:g};"
            f" against the server: {against}"
        )
    others = [p for p in folder.glob("reveals-*.json") if p != place.reveals(known.fingerprint)]
    if others:
        print_line(f"this node took part in {len(others)} other federation(s): their costs add up")


def say_traffic(terms: "Terms", found: list[dict[str, Any]], json_: bool) -> None:
    """Print what a node gets and sends."""
    if json_:
        print_json(found)
        return
    print_line(terms_line(terms))
    rows = [
        [value if isinstance(value, str) else f"{value:,}" for value in entry.values()]
        for entry in found
    ]
    columns = ("phase", "rounds", "exchanges", "numbers", "bytes down", "bytes up")
    print_table("A node's part of one round, at most", columns, rows)


def say_result(place: Path, path: Path, json_: bool) -> None:
    """Evaluate a run and print its table and statement."""
    from privrec.runs.api import open_run
    from privrec.show.report import table_rows

    run = open_run(place)
    found = run.evaluate(progress=False).as_json()
    if json_:
        print_json(found)
        return
    ks = ("5", "10", "20", "30")
    rows = [(name, *(f"{hits[k]:.3f}" for k in ks)) for name, hits, _ in table_rows(found)]
    print_table(f"Hits@k on {found['data']}", ("", *(f"@{k}" for k in ks)), rows)
    print_line(found["privacy"]["statement"])
    print_line(f"the run: {run.folder.path}; server and nodes: {path}")
