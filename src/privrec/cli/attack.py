"""`privrec attack` (membership inference for a whole person) and `privrec audit` (canaries)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privrec.cli.console import (
    EXIT_WRONG_INPUT,
    EXPERIMENTS_KEPT,
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import (
    DataOrDefault,
    EpsilonsOption,
    JsonOption,
    RecipesOption,
    SetOption,
    names_between_commas,
    numbers,
    offer_data,
    offer_recipes,
    settings_from,
)

if TYPE_CHECKING:
    from privrec.attacks.membership import Options, Prepared
    from privrec.runs.documents import Attack, Audit

EXIT_DOES_NOT_HOLD = EXIT_WRONG_INPUT + 1
Job = tuple[Path, str, str, Path, dict[str, object]]
"""An attack: the file of its result, the recipe, the data, the folder of models, the settings."""
RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Run folders: the attack trains its own models as each run was trained, because it"
        " must know who took part.",
    ),
]
AuditOutOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the result as JSON, and as a page beside it.",
        dir_okay=False,
        show_default="of a run: RUN/simulation/audit.json",
    ),
]


def attack(
    runs: RunsArgument = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Attack recipes on this data instead of runs.", autocompletion=offer_data
        ),
    ] = None,
    recipes: RecipesOption = "",
    epsilons: EpsilonsOption = "2,5,15",
    kinds: Annotated[
        str, typer.Option(help="The attacks, with commas (docs/attacks.md).")
    ] = "paper,loss,ratio,sums,twice,server",
    repetitions: Annotated[int, typer.Option(help="Targets that are attacked.")] = 5,
    shadows: Annotated[int, typer.Option(help="Models for kind ratio.")] = 16,
    people: Annotated[
        int, typer.Option(help="Members of each model to guess about, and as many others.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Decides who trains which model.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(help="Models trained at a time, each on one core.", show_default="all cores"),
    ] = None,
    set_: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="runs/attack-DATA")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Try to find out from a model who took part in its training.

    Trains models on random parts of the people and attacks them. These models are experiments:
    their noise is seeded and protects nobody. Models that are in the folder are not trained again.
    """
    with plain_errors(EXPERIMENTS_KEPT):
        from privrec.attacks.membership import Options, play_attack
        from privrec.runs.documents import Attack

        options = Options(
            kinds=names_between_commas(kinds),
            repetitions=repetitions,
            shadows=shadows,
            people=people,
            seed=seed,
        )
        jobs = _jobs(runs or [], data, recipes, epsilons, set_ or [], out=out, seed=seed)
        results = {}
        for place, prepared in _prepare(jobs, options).items():
            with progress() as on_progress:
                result = play_attack(prepared, workers=workers, on_progress=on_progress)
            results[place] = _with_earlier(Attack.read(place), result)
            _write(place, results[place], run=place.parent.parent if runs else None)
        _print_attacks(results, as_json=json_)


def _jobs(
    runs: Sequence[Path],
    data: str | None,
    recipes: str,
    epsilons: str,
    pairs: Sequence[str],
    *,
    out: Path | None,
    seed: int,
) -> Iterator[Job]:
    """Yield a job per run, with its settings changed by `--set`, or per recipe and epsilon."""
    from privrec.algorithms.recipes import settings_of
    from privrec.attacks.membership import OURS
    from privrec.errors import SettingsError
    from privrec.runs.folder import SIMULATION, read_settings
    from privrec.runs.frontier import jobs_of
    from privrec.settings import parse_overrides

    if bool(runs) == (data is not None):
        raise SettingsError("give either run folders or --data")
    settings = parse_overrides(pairs)
    for run in runs:
        _, config = read_settings(run, settings_of)
        own = config.model_dump(exclude=set(OURS), exclude_none=True)
        place, path = out or _usual_folder(config.data), run.resolve()
        result, models = path / SIMULATION / "attack.json", place / f"like-{path.name}-seed-{seed}"
        yield result, config.recipe, config.data, models, {**own, **settings}
    if data is None:
        return
    if not recipes:
        raise SettingsError("--data needs --recipes: which ones to attack, with commas")
    if "epsilon" in settings:
        raise SettingsError("`epsilon` is given by --epsilons, not by --set")
    place = out or _usual_folder(data)
    for job in jobs_of(recipes.split(","), seeds=[seed], epsilons=numbers(epsilons, "epsilons")):
        budget = {} if job.epsilon is None else {"epsilon": job.epsilon}
        result = place / f"attack-{job.name.removesuffix(f'-seed-{seed}')}.json"
        yield result, job.recipe, data, place / job.name, {**settings, **budget}


def _usual_folder(data: str) -> Path:
    return Path("runs") / f"attack-{file_name(data)}"


def _prepare(jobs: Iterator[Job], options: "Options") -> dict[Path, "Prepared"]:
    """Return the attacks by the path of their result.

    All attacks are prepared before the first one runs, so that a wrong setting or an unreadable
    earlier result is found at once.
    """
    from privrec.attacks.membership import prepare_attack
    from privrec.data.sources import load
    from privrec.runs.documents import Attack

    loaded, prepared = cache(load), {}
    for result, recipe, data, models, settings in jobs:
        Attack.read(result)
        prepared[result] = prepare_attack(
            recipe, loaded(data), data=data, out=models, options=options, settings=settings
        )
    return prepared


def _with_earlier(before: "Attack | None", result: "Attack") -> "Attack":
    """Return the result plus the other kinds of attack in an earlier result with equal settings."""
    same = ("recipe", "data", "epsilon", "delta", "repetitions", "seed")
    if before is None or any(getattr(before, key) != getattr(result, key) for key in same):
        return result
    kinds = result.attacks
    earlier = {
        kind: getattr(before.attacks, kind)
        for kind in before.attacks.model_fields_set - kinds.model_fields_set
    }
    return result.model_copy(update={"attacks": kinds.model_copy(update=earlier)})


def _print_attacks(results: Mapping[Path, "Attack"], *, as_json: bool) -> None:
    from privrec.show.attacks import attack_table, server_table

    if as_json:
        print_json([result.as_json() for result in results.values()])
        return
    rows, readings = [], []
    for result in results.values():
        table, server = attack_table(result.attacks), server_table(result.attacks.server)
        epsilon = "none" if result.epsilon is None else f"{result.epsilon:g}"
        rows += [(result.recipe, result.data, epsilon, *row[:-1]) for row in table.rows]
        readings += [(result.recipe, *row) for row in server.rows]
    if rows:
        columns = ("recipe", "data", "ε", *table.head[:-1])
        print_table("Who took part in training?", columns, rows)
        print_line(
            "Guessing has accuracy and AUC 0.5. Except for the paper's attack, accuracy is that of"
            " the best threshold."
        )
    if readings:
        title = (
            "What a server reads off one contribution: items, and likes (guessing: popular ones)"
        )
        print_table(title, ("recipe", *server.head), readings)
    print_line(f"figures: {', '.join(map(str, results))}; pages beside them")


def audit(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|RUN",
            help="A recipe, or a run folder: its settings, trained anew.",
            autocompletion=offer_recipes,
        ),
    ],
    data: DataOrDefault = None,
    epsilon: Annotated[
        float | None, typer.Option(help="The budget.", show_default="the recipe's")
    ] = None,
    canaries: Annotated[int, typer.Option(help="How many made-up people toss a coin.")] = 1000,
    confidence: Annotated[
        float, typer.Option(help="How sure the lower bound is: 1 in 20 is wrong at 0.95.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(min=0, help="Makes the canaries and their coins.")] = 0,
    set_: SetOption = None,
    out: AuditOutOption = None,
    json_: JsonOption = False,
) -> None:
    """Audit a recipe: is its ledger's epsilon at least what an attacker can prove?

    Made-up people (canaries) take part in a real training, each with probability 1/2. An attacker
    who sees everything that is published guesses who took part. The guesses give a lower bound on
    epsilon. If it is above the ledger's epsilon, the exit code is 3. The model is not kept; do not
    release it.
    """
    with plain_errors():
        from privrec.attacks.audit import audit as run_audit
        from privrec.errors import SettingsError

        if out is not None and out.suffix != ".json":
            raise SettingsError(f"--out must end in .json, a page is written beside it; got {out}")
        place, named, settings = _asked(recipe, data, epsilon, set_)
        with progress() as on_progress:
            audited = run_audit(
                named,
                settings.pop("data"),
                canaries=canaries,
                confidence=confidence,
                seed=seed,
                on_progress=on_progress,
                **settings,
            )
        where = out or place
        if where is not None:
            where.parent.mkdir(parents=True, exist_ok=True)
            _write(where, audited, run=Path(recipe) if place else None)
        if json_:
            print_json(audited.as_json())
        else:
            _print_audit(audited, where)
    if audited.holds is False:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _asked(
    recipe: str, data: str | None, epsilon: float | None, pairs: list[str] | None
) -> tuple[Path | None, str, dict[str, Any]]:
    """Return the path of the result (None: no file), the recipe, and the settings with the data."""
    from privrec.algorithms.recipes import recipe_named, settings_of
    from privrec.attacks.trial import EVERYBODY_TRAINS
    from privrec.errors import SettingsError
    from privrec.runs.folder import SIMULATION, read_settings

    given = settings_from(None, pairs, {"epsilon": epsilon})
    for key in ("seed", "recipe", "data", *EVERYBODY_TRAINS):
        if key in given:
            raise SettingsError(f"an audit sets `{key}` itself; leave out --set {key}")
    run = Path(recipe)
    if not run.is_dir():
        recipe_named(recipe)
        return None, recipe, {**given, "data": data or "synthetic"}
    if data is not None:
        raise SettingsError("a run has its own data: leave out --data")
    _, config = read_settings(run, settings_of)
    ours = {"recipe", "seed", "candidates", *EVERYBODY_TRAINS}
    own = config.model_dump(exclude_none=True, exclude=ours)
    return run / SIMULATION / "audit.json", config.recipe, {**own, **given}


def _write(where: Path, document: "Attack | Audit", *, run: Path | None) -> None:
    """Write the JSON and the page; write the report of an attacked or audited run again."""
    from privrec.runs.api import open_run
    from privrec.runs.folder import write_whole
    from privrec.show.attacks import render_attacks
    from privrec.show.write import refresh_report

    write_whole(where, document.text())
    write_whole(where.with_suffix(".html"), render_attacks(document).encode())
    if run is not None:
        refresh_report(open_run(run))


def _print_audit(audited: "Audit", where: Path | None) -> None:
    from privrec.show.attacks import BOUNDS

    ledger, most, area = audited.epsilon_ledger, audited.epsilon_most, audited.auc
    shown = "none (infinite)" if ledger is None else f"{ledger:.3f}"
    rows = [("ledger", shown), ("proved, at least", f"{audited.epsilon_lower:.3f}")]
    for key, name in BOUNDS.items():
        bound = audited.bounds.get(key)
        rows.append((f"  by {name}", "-" if bound is None else f"{bound:.3f}"))
    title = f"epsilon of {audited.recipe} on {audited.data}, delta {audited.delta:g}"
    print_table(title, ("", "epsilon"), rows)
    measured = "-" if area is None else f"{area.value:.3f} ({area.low:.3f} to {area.high:.3f})"
    print_line(
        f"{audited.canaries:,} canaries, {audited.releases} releases: AUC {measured}, allowed"
        f" {audited.auc_allowed:.3f}; confidence {audited.confidence:g}, noise {audited.noise}"
    )
    for finding in audited.findings:
        print_line(f"finding: {finding}")
    if audited.holds is None:
        print_line("The ledger promises nothing, so there is nothing to break.")
    elif audited.holds and most is not None and ledger is not None and most < ledger:
        print_line(
            f"Nothing contradicts the ledger, but {audited.canaries:,} canaries can prove at most"
            f" epsilon {most:.2f}: take more to test it."
        )
    elif audited.holds:
        print_line("Holds: nothing contradicts the ledger. This is no proof that it is right.")
    elif ledger is None:
        print_line("DOES NOT HOLD: a budget was asked for, and the ledger promises nothing.")
    else:
        chance = 1 - audited.confidence
        print_line(
            "DOES NOT HOLD: more is given away than the ledger says. A right ledger ends like this"
            f" with probability {chance:.2g} at most, unless there is a finding: audit again with"
            " another --seed, more canaries or a higher --confidence."
        )
    if where is not None:
        print_line(f"written: {where}, {where.with_suffix('.html')}")
