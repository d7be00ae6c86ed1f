"""`privrec bench`: measurements that the paper prints, on this machine."""

from typing import Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line, print_table, progress
from privrec.cli.options import examples, offer_data

bench_app = typer.Typer(
    help="Measure on this machine what the paper measures.",
    no_args_is_help=True,
    epilog=examples("privrec bench meta --data synthetic --rounds 3"),
)


@bench_app.callback()
def _group() -> None:
    """Keep `meta` a command of its own, although there is no other."""


@bench_app.command(epilog=examples("privrec bench meta --data synthetic --rounds 3"))
def meta(
    data: Annotated[
        str, typer.Option(help="A built-in name or a data folder.", autocompletion=offer_data)
    ] = "movielens-1m",
    cohorts: Annotated[
        str, typer.Option(help="The numbers of people in a round, with commas.")
    ] = "5,10,20,30,40",
    rounds: Annotated[int, typer.Option(help="Rounds to time for each number of people.")] = 15,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Time rounds of Reptile and of MAML on the same network, data and cohorts.

    They take turns, round by round. What is printed is the median.
    """
    with plain_errors():
        from privrec.errors import SettingsError
        from privrec.runs.meta_rounds import CONTENDERS, PAPER, SECOND, time_rounds

        try:
            sizes = [int(part) for part in cohorts.split(",")]
        except ValueError as error:
            raise SettingsError(
                f"`cohorts` must be whole numbers with commas; got {cohorts!r}"
            ) from error
        with progress() as on_progress:
            found = time_rounds(data, sizes, rounds=rounds, on_progress=on_progress)
        if json_:
            print_json(found.as_json())
            return
        others = [name for name in CONTENDERS if name != SECOND]
        columns = ("people", *CONTENDERS, *(f"{SECOND} / {name}" for name in others))
        rows = [
            (
                str(cohort),
                *(f"{1000 * times[name]:.1f}" for name in CONTENDERS),
                *(f"{found.ratio(cohort, name):.2f}" for name in others),
            )
            for cohort, times in found.seconds.items()
        ]
        print_table(f"Milliseconds of a round on {data}, median of {rounds}", columns, rows)
        for name, contender in CONTENDERS.items():
            print_line(f"{name}: {contender.does}")
        low, high = PAPER
        print_line(
            f"the paper: a round of second-order MAML takes {low:g} to {high:g} times as long as"
            " one of Reptile; it does not say how many steps either takes"
        )
