"""`privrec compare`: runs side by side, trained here or given as folders."""

from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.completion import offer_data, offer_recipe_lists, offer_runs
from privrec.cli.console import (
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import numbers
from privrec.cli.stopping import EXPERIMENTS_STOPPED

_KS = ("10", "20")
"""All four would make the table too wide for a terminal."""


def compare(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Evaluated run folders.", autocompletion=offer_runs
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Train and test recipes on this data instead.", autocompletion=offer_data
        ),
    ] = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="With --data: which recipes, with commas.", autocompletion=offer_recipe_lists
        ),
    ] = "all",
    seeds: Annotated[str, typer.Option(help="With --data: the splits, with commas.")] = "0",
    epsilons: Annotated[
        str, typer.Option(help="With --data: the budgets of recipes with noise, with commas.")
    ] = "8",
    out: Annotated[
        Path | None,
        typer.Option(help="With --data: the folder.", show_default="runs/compare-DATA"),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page.", dir_okay=False)] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Show runs side by side: quality, the paper's figures, time, bytes sent and privacy.

    With --data it trains and tests the recipes first. Those runs are experiments: their noise is
    seeded and protects nobody. Runs that are already in the folder are not trained again.
    """
    with plain_errors(EXPERIMENTS_STOPPED):
        from privrec.errors import SettingsError
        from privrec.runs.experiments import jobs_of, run_jobs, seconds_of
        from privrec.runs.records import read_run
        from privrec.show.comparison import any_attacked, columns, comparison

        if bool(runs) == (data is not None):
            raise SettingsError("give either run folders or --data")
        places = list(runs or [])
        if data is not None:
            jobs = jobs_of(
                recipes.split(","),
                seeds=[int(seed) for seed in numbers(seeds, "seeds", whole=True)],
                epsilons=numbers(epsilons, "epsilons"),
            )
            folder = out or Path("runs") / f"compare-{file_name(data)}"
            with progress() as on_progress:
                places = run_jobs(jobs, data, folder, on_progress)
        evaluations = _evaluated(places)
        settings = {str(path): read_run(path)[1] for path in places}
        timed = {
            name: {**one, "cost": {**one.get("cost", {}), "seconds": seconds_of(Path(name))}}
            for name, one in evaluations.items()
        }
        if html is not None:
            _write_page(html, timed, settings)
        if json_:
            print_json(evaluations)
            return
        attacked = any_attacked(timed)
        for title, lines in comparison(timed, settings).items():
            cells = [line.cells(_KS, attacked=attacked) for line in lines]
            print_table(f"Hits@k on {title}", columns(_KS, attacked=attacked), cells)
        print_line("bytes sent: by one person of usual size in one round; --html has all k")


def _write_page(
    path: Path, evaluations: dict[str, dict[str, Any]], settings: dict[str, dict[str, Any]]
) -> None:
    import os

    from privrec.runs.records import read_rounds, read_run, write_whole
    from privrec.show.compare_page import render_comparison
    from privrec.show.page import path_link

    folders = {name: read_run(Path(name))[0] for name in evaluations}
    reports = {
        name: path_link(os.path.relpath(folder.report_path.resolve(), path.parent.resolve()))
        for name, folder in folders.items()
        if folder.report_path.is_file()
    }
    rounds = {name: read_rounds(folder.figures_path) for name, folder in folders.items()}
    text = render_comparison(evaluations, settings, rounds=rounds, reports=reports)
    write_whole(path, text.encode())


def _evaluated(places: list[Path]) -> dict[str, dict[str, Any]]:
    """Return the evaluation of each run, with what attacks and audits found, if any."""
    from privrec.runs.records import read_evaluation, read_run
    from privrec.runs.run import attacked_in

    evaluations = {}
    for path in places:
        found = attacked_in(read_run(path)[0])
        evaluations[str(path)] = {**read_evaluation(path), **({"attacked": found} if found else {})}
    return evaluations
