"""Experiments: `privrec compare` and `privrec frontier` (quality against epsilon)."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.console import (
    EXPERIMENTS_KEPT,
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import (
    DataOption,
    EpsilonsOption,
    JsonOption,
    RecipesOption,
    numbers,
    offer_data,
    whole_numbers,
)

if TYPE_CHECKING:
    from privrec.runs.compare import Comparison
    from privrec.runs.frontier import Frontier

_KS = (10, 20)
"""The k of Hits@k in the table. With all four k it would be too wide for a terminal."""


RunsArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="[RUN]...", help="Evaluated run folders.")
]
TrainOnOption = Annotated[
    str | None,
    typer.Option(help="Train and test recipes on this data instead.", autocompletion=offer_data),
]


def compare(
    runs: RunsArgument = None,
    data: TrainOnOption = None,
    recipes: RecipesOption = "all",
    seeds: Annotated[str, typer.Option(help="With --data: the splits, with commas.")] = "0",
    epsilons: EpsilonsOption = "8",
    out: Annotated[
        Path | None, typer.Option(help="With --data: the folder.", show_default="runs/compare-DATA")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page.", dir_okay=False)] = None,
    json_: JsonOption = False,
) -> None:
    """Show runs side by side: quality, the paper's figures, time, bytes sent and privacy.

    With --data it trains and tests the recipes first. Those runs are experiments: their noise is
    seeded and protects nobody. Runs that are already in the folder are not trained again.
    """
    with plain_errors(EXPERIMENTS_KEPT):
        from privrec.errors import SettingsError
        from privrec.runs.compare import compare as side_by_side
        from privrec.runs.frontier import jobs_of, run_jobs
        from privrec.show.write import write_missing_reports

        if bool(runs) == (data is not None):
            raise SettingsError("give either run folders or --data")
        places = list(runs or [])
        if data is not None:
            jobs = jobs_of(
                recipes.split(","),
                seeds=whole_numbers(seeds, "seeds"),
                epsilons=numbers(epsilons, "epsilons"),
            )
            folder = out or Path("runs") / f"compare-{file_name(data)}"
            with progress() as on_progress:
                places = list(run_jobs({folder / job.name: job for job in jobs}, data, on_progress))
            write_missing_reports(places)
        compared = side_by_side(places)
        if html is not None:
            _write_page(html, compared)
        if json_:
            print_json(compared.as_json())
        else:
            _print_tables(compared)


def _print_tables(compared: "Comparison") -> None:
    from privrec.runs.compare import columns

    for title, lines in compared.tables.items():
        head, cells = columns(_KS), [line.cells(_KS) for line in lines]
        # Leave out empty columns, but always show the privacy guarantee.
        shown = [
            n for n, name in enumerate(head) if name == "privacy" or any(row[n] for row in cells)
        ]
        rows = [[row[n] for n in shown] for row in cells]
        print_table(f"Hits@k on {title}", [head[n] for n in shown], rows)
        for difference in compared.against[title]:
            print_line(difference.sentence())
    for line in compared.warnings:
        print_line(f"warning: {line}")
    print_line("bytes sent: by one person of usual size in one round; --html has all k")


def _write_page(path: Path, compared: "Comparison") -> None:
    import os

    from privrec.runs.documents import RoundFigures
    from privrec.runs.folder import RunFolder, read_rounds, write_whole
    from privrec.show.comparison import render_comparison
    from privrec.show.page import path_link

    folders = {name: RunFolder(path=Path(name)) for name in compared.rows}
    reports = {
        name: path_link(os.path.relpath(folder.report_path.resolve(), path.parent.resolve()))
        for name, folder in folders.items()
        if folder.report_path.is_file()
    }
    rounds = {
        name: read_rounds(folder.figures_path, RoundFigures) for name, folder in folders.items()
    }
    text = render_comparison(compared, rounds=rounds, reports=reports)
    write_whole(path, text.encode())


def frontier(
    data: DataOption = "synthetic",
    epsilons: Annotated[
        str, typer.Option(help="The budgets, with commas; inf is no noise.")
    ] = "1,2,4,8,inf",
    delta: Annotated[float, typer.Option(help="The delta of the guarantee.")] = 1e-6,
    seeds: Annotated[str, typer.Option(help="The splits to average over, with commas.")] = "0",
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="runs/frontier-DATA")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Train dp-privrec-plus at each epsilon, test it, and draw Hits@20 against epsilon.

    The runs are experiments: their noise is seeded, so that it can be repeated, and protects
    nobody. Runs that are already in the folder are not trained again. Writes frontier.html, .svg,
    .json.
    """
    with plain_errors(EXPERIMENTS_KEPT):
        from privrec.runs.frontier import find_frontier
        from privrec.show.frontier import write_frontier

        splits = whole_numbers(seeds, "seeds")
        place = out or Path("runs") / f"frontier-{file_name(data)}"
        with progress() as on_progress:
            measured = find_frontier(
                data,
                numbers(epsilons, "epsilons"),
                delta=delta,
                seeds=splits,
                out=place,
                on_progress=on_progress,
            )
        written = write_frontier(measured, splits, place)
        if json_:
            print_json(measured.as_json())
            return
        _print_frontier(measured)
        print_line(f"pictures: {', '.join(map(str, written))}")


def _print_frontier(measured: "Frontier") -> None:
    from privrec.runs.frontier import experiment_line
    from privrec.show.frontier import frontier_table

    table = frontier_table(measured)
    print_table(table.name, table.head, table.rows)
    for line, level in measured.lines.items():
        print_line(f"{line}: Hits@20 {level:.3f}")
    for line in (*(f"warning: {one}" for one in measured.warnings), experiment_line(measured)):
        print_line(line)
