"""`privrec frontier`: quality against epsilon, trained, tested and drawn."""

from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.completion import offer_data
from privrec.cli.console import (
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import JsonOption, numbers
from privrec.cli.stopping import EXPERIMENTS_STOPPED


def frontier(
    data: Annotated[
        str, typer.Option(help="A built-in name or a data folder.", autocompletion=offer_data)
    ] = "synthetic",
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

    This is an experiment: its noise is seeded, so that it can be repeated, and protects nobody.
    Runs that are already in the folder are not trained again. Writes frontier.html, .png, .json.
    """
    with plain_errors(EXPERIMENTS_STOPPED):
        from privrec.privacy.words import epsilon_text
        from privrec.runs.frontier import experiment_line, find_frontier
        from privrec.show.worth import arm_text, signed_with_arm

        place = out or Path("runs") / f"frontier-{file_name(data)}"
        with progress() as on_progress:
            found = find_frontier(
                data,
                numbers(epsilons, "epsilons"),
                delta=delta,
                seeds=[int(seed) for seed in numbers(seeds, "seeds", whole=True)],
                out=place,
                on_progress=on_progress,
            )
        if json_:
            print_json(found.as_json())
            return
        ks = list(found.points[0].hits)
        rows = [
            (
                "inf" if point.epsilon is None else f"{point.epsilon:g}",
                "no noise"
                if point.epsilon_of_mechanism is None
                else epsilon_text(point.epsilon_of_mechanism, 3),
                *(f"{point.hits[k]:.3f}" for k in ks),
                arm_text(point.hits["20"], point.interval.get("20")),
                signed_with_arm(point.above),
            )
            for point in found.points
        ]
        columns = ("epsilon", "spent", *(f"@{k}" for k in ks), "± @20", "over popularity")
        print_table(f"Hits@k on {found.data}, delta {found.delta:g}", columns, rows)
        for line, level in found.lines.items():
            print_line(f"{line}: Hits@20 {level:.3f}")
        for line in (*(f"warning: {one}" for one in found.warnings), experiment_line(found)):
            print_line(line)
        print_line(f"pictures: {place / 'frontier.html'}, {place / 'frontier.png'}")
