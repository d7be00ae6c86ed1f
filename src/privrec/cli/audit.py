"""`privrec audit`: try to break the guarantee of a recipe with canaries, in one training run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.console import (
    EXIT_WRONG_INPUT,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import SetOption, offer_data, offer_recipes_and_runs, settings_from

EXIT_DOES_NOT_HOLD = EXIT_WRONG_INPUT + 1


OutOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the result as JSON, and as a page beside it.",
        dir_okay=False,
        show_default="of a run: RUN/simulation/audit.json",
    ),
]


def audit(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|RUN",
            help="A recipe, or a run folder: its settings, trained anew.",
            autocompletion=offer_recipes_and_runs,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="A built-in name or a data folder.",
            show_default="synthetic",
            autocompletion=offer_data,
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget.", show_default="the recipe's")
    ] = None,
    canaries: Annotated[int, typer.Option(help="How many made-up people toss a coin.")] = 1000,
    confidence: Annotated[
        float, typer.Option(help="How sure the lower bound is: 1 in 20 is wrong at 0.95.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Makes the canaries and their coins.")] = 0,
    set_: SetOption = None,
    out: OutOption = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Audit a recipe: is its ledger's epsilon at least what an attacker can prove?

    Made-up people take part in a real training or not, each by a coin. An attacker who sees all
    that is published guesses the coins. How well that goes is a lower bound on epsilon. If it is
    above the ledger's, the exit code is 3. The trained model is thrown away; do not release it.
    """
    with plain_errors():
        from privrec.attacks.audit import audit as run_audit

        _check_place(out)
        place, named, settings = _asked(recipe, data, epsilon, set_ or [])
        with progress() as on_progress:
            found = run_audit(
                named,
                settings.pop("data"),
                canaries=canaries,
                confidence=confidence,
                seed=seed,
                on_progress=on_progress,
                **settings,
            )
        where, document = out or place, found.as_json()
        _write(where, document, recipe if place else None)
        if json_:
            print_json(document)
        else:
            _show(document, where)
    if not found.holds:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _check_place(out: Path | None) -> None:
    from privrec.errors import SettingsError

    if out is not None and out.suffix != ".json":
        raise SettingsError(f"--out must end in .json, a page is written beside it; got {out}")


def _asked(
    recipe: str, data: str | None, epsilon: float | None, pairs: list[str]
) -> tuple[Path | None, str, dict[str, Any]]:
    """Return where to write (None: nowhere), the recipe and the settings, the data among them."""
    from privrec.algorithms.recipes import recipe_named, settings_of
    from privrec.errors import SettingsError
    from privrec.runs.folder import RunFolder, read_settings

    given = settings_from(None, pairs, {"epsilon": epsilon})
    for key in ("seed", "recipe", "data", "test_share", "validation_share", "protocol"):
        if key in given:
            raise SettingsError(f"an audit sets `{key}` itself; leave out --set {key}")
    if not Path(recipe).is_dir():
        recipe_named(recipe)
        return None, recipe, {**given, "data": data or "synthetic"}
    if data is not None:
        raise SettingsError("a run has its own data: leave out --data")
    _, config = read_settings(Path(recipe), settings_of)
    own = config.model_dump(
        exclude_none=True,
        exclude={"recipe", "seed", "test_share", "validation_share", "protocol", "candidates"},
    )
    place = RunFolder(path=Path(recipe)).evaluation_path.with_name("audit.json")
    return place, config.recipe, {**own, **given}


def _write(where: Path | None, document: dict[str, Any], run: str | None) -> None:
    """Write the JSON and the page, and the report of a run that was audited."""
    if where is None:
        return
    import json

    from privrec.runs.api import open_run
    from privrec.runs.folder import write_whole
    from privrec.show.attacks import render_attacks
    from privrec.show.write import refresh_report

    where.parent.mkdir(parents=True, exist_ok=True)
    write_whole(where, (json.dumps(document, indent=2) + "\n").encode())
    write_whole(where.with_suffix(".html"), render_attacks([], [document]).encode())
    if run is not None:
        refresh_report(open_run(run))


def _show(found: dict[str, Any], where: Path | None) -> None:
    ledger, bounds = found["epsilon_ledger"], found["bounds"]
    shown = "none (infinite)" if ledger is None else f"{ledger:.3f}"
    rows = [
        ("ledger", shown),
        ("proved, at least", f"{found['epsilon_lower']:.3f}"),
        ("  by the ROC area", "-" if bounds["curve"] is None else f"{bounds['curve']:.3f}"),
        ("  by one run", f"{bounds['one_run']:.3f}"),
        ("  by Clopper-Pearson", f"{bounds['clopper_pearson']:.3f}"),
    ]
    title = f"epsilon of {found['recipe']} on {found['data']}, delta {found['delta']:g}"
    print_table(title, ("", "epsilon"), rows)
    area = found["auc"]
    print_line(
        f"{found['canaries']:,} canaries, {found['releases']} releases: AUC {area['value']:.3f}"
        f" ({area['low']:.3f} to {area['high']:.3f}), allowed {found['auc_allowed']:.3f};"
        f" confidence {found['confidence']:g}, noise {found['noise']}"
    )
    for finding in found["findings"]:
        print_line(f"finding: {finding}")
    if found["holds"] is None:
        print_line("The ledger promises nothing, so there is nothing to break.")
    elif found["holds"] and found["epsilon_most"] < ledger:
        print_line(
            f"Nothing contradicts the ledger, but {found['canaries']:,} canaries can prove at most"
            f" epsilon {found['epsilon_most']:.2f}: take more to test it."
        )
    elif found["holds"]:
        print_line("Holds: nothing contradicts the ledger. This is no proof that it is right.")
    elif ledger is None:
        print_line("DOES NOT HOLD: a budget was asked for, and the ledger promises nothing.")
    else:
        chance = 1 - found["confidence"]
        print_line(
            "DOES NOT HOLD: more is given away than the ledger says. A right ledger ends like this"
            f" with probability {chance:.2g} at most, unless there is a finding: audit again with"
            " another --seed, more canaries or a higher --confidence."
        )
    if where is not None:
        print_line(f"written: {where}, {where.with_suffix('.html')}")
