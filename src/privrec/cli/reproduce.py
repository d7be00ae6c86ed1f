"""`privrec reproduce`: the paper's tables and figures, with our numbers beside the paper's."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line, print_table, progress
from privrec.cli.options import JsonOption, offer_data, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privrec.reproduce.plan import Plan
    from privrec.reproduce.results import Result

NAMES = (
    *("table-movielens", "table-frappe", "fl-parameters", "dp-hits", "epsilon-tables", "budget"),
    *("personalisation", "meta-cost", "attack-table", "activity"),
)
"""Names for TAB completion, which must import nothing. A test compares them with `EXPERIMENTS`."""
_KEPT = "stopped; what is finished is kept, and the same command goes on from there"


def _offer(incomplete: str) -> list[str]:
    return [name for name in ("all", *NAMES) if name.startswith(incomplete)]


NamesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NAME...|all", help="Tables and figures.", autocompletion=_offer),
]


def reproduce(
    names: NamesArgument,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="One of the paper's data sets, or other data in their place; repeat.",
            show_default="movielens-1m and frappe",
            autocompletion=offer_data,
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="The splits, with commas.", show_default="0,1,2; quick: 0")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything, in a few minutes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="runs/reproduce")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Parts side by side.", show_default="2 where memory allows"),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="A page of documentation: fill its marked tables.", dir_okay=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan alone.")] = False,
    json_: JsonOption = False,
) -> None:
    """Make the paper's tables and figures again, and compare our numbers with the paper's.

    NAME is table-movielens, table-frappe, fl-parameters, dp-hits, epsilon-tables, budget,
    personalisation, meta-cost, attack-table or activity. Finished parts are kept in the folder and
    are not run again. Writes reproduction.html, and for each name JSON, CSV, LaTeX and SVG. These
    runs are experiments: their noise is seeded and protects nobody.
    """
    with plain_errors(_KEPT):
        from privrec.attacks.membership import attack
        from privrec.reproduce.plan import play_plan, results_of, usual_jobs, write_results
        from privrec.show.reproduction import put_into, write_page

        place = out or Path("runs") / ("reproduce-quick" if quick else "reproduce")
        plan = _plan(names, data or [], seeds, place, quick=quick, into=into)
        many = jobs or usual_jobs(os.cpu_count() or 1)
        if not json_ or dry_run:
            _print_plan(plan, many, as_json=json_)
        if dry_run:
            return
        with progress() as on_progress:
            play_plan(plan, jobs=many, attack=attack, on_progress=on_progress)
        results = results_of(plan, _command(data or [], seeds, quick=quick))
        written = [*write_results(plan, results), *write_page(place)]
        if into is not None:
            written += put_into(into, results, commit=_commit(), date=str(datetime.now(UTC).date()))
        if json_:
            print_json([one.as_json() for one in results])
            return
        _print_results(results)
        print_line(f"page: {place / 'reproduction.html'}; {len(written) - 1} more files beside it")


def _plan(
    names: "Sequence[str]",
    data: "Sequence[str]",
    seeds: str | None,
    out: Path,
    *,
    quick: bool,
    into: Path | None,
) -> "Plan":
    """Return the plan; raise before hours of work if the page `into` cannot be filled."""
    from privrec.errors import SettingsError
    from privrec.reproduce.cell import full
    from privrec.reproduce.cell import quick as little
    from privrec.reproduce.experiments import EXPERIMENTS
    from privrec.reproduce.plan import data_of, make_plan, names_of
    from privrec.runs.frontier import check_seeds
    from privrec.show.reproduction import check_page

    if into is not None:
        check_page(into)
    if quick and data:
        raise SettingsError("--quick has its own data: leave out --data")
    splits = whole_numbers(seeds or ("0" if quick else "0,1,2"), "seeds")
    check_seeds(splits)
    chosen = data_of(names_of(names), data)
    wanted = list(dict.fromkeys(one for sets in chosen.values() for one in sets))
    needed = {one for name in chosen if EXPERIMENTS[name].needs_data for one in chosen[name]}
    read = [one for one in wanted if one in needed]
    scale = little(splits) if quick else full(wanted, splits, read=read)
    return make_plan(chosen, scale, out)


def _command(data: "Sequence[str]", seeds: str | None, *, quick: bool) -> str:
    """Return the command that makes a result again, with NAME for the result's name."""
    given = [f" --data {one}" for one in data] + ([f" --seeds {seeds}"] if seeds else [])
    return f"privrec reproduce NAME{''.join(given)}{' --quick' if quick else ''}"


def _print_plan(plan: "Plan", jobs: int, *, as_json: bool) -> None:
    left = plan.seconds_left(jobs=jobs)
    if as_json:
        parts = {
            name: {
                "parts": len(keys),
                "missing": len(plan.missing(keys)),
                "seconds": round(plan.seconds_left(keys, jobs=jobs)),
            }
            for name, keys in plan.keys.items()
        }
        print_json({"names": parts, "seconds": round(left), "jobs": jobs})
        return
    from privrec.runs.figures import duration

    rows = []
    for name, keys in plan.keys.items():
        missing = plan.missing(keys)
        about = duration(max(1.0, plan.seconds_left(keys, jobs=jobs))) if missing else "kept"
        rows.append((name, f"{len(keys)}", f"{len(missing)}", about))
    print_table("Plan", ("", "parts", "to do", "about"), rows)
    if plan.missing():
        print_line(
            f"together about {duration(max(1.0, left))}, {jobs} at a time; names share parts, and"
            " what is finished is kept"
        )


def _print_results(results: "Sequence[Result]") -> None:
    for one in results:
        print_line(f"{one.name}: {one.title}")
        for sentence in one.sentences:
            print_line(sentence, indent=2)


def _commit() -> str:
    """Return the git commit of the code; "" if the code is not in a git repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError:
        return ""
    return done.stdout.strip()
