"""`privrec attack` (membership inference, of a whole person) and `privrec audit` (canaries)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    SetOption,
    names_between_commas,
    numbers,
    offer_data,
    offer_recipe_lists,
    offer_recipes_and_runs,
    offer_runs,
    settings_from,
)

if TYPE_CHECKING:
    from privrec.attacks.games import Options
    from privrec.runs.documents import Attack, Audit, ServerView

EXIT_DOES_NOT_HOLD = EXIT_WRONG_INPUT + 1
_COLUMNS = (
    "recipe",
    "data",
    "ε",
    "attack",
    "accuracy",
    "AUC",
    "95 % interval",
    "TPR at 1 %",
    "at 0.1 %",
    "paper's accuracy",
)


RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Run folders: the attack trains its own models as each run was trained, because it"
        " must know who took part.",
        autocompletion=offer_runs,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One attack: `models` is the folder of its models, `result` its JSON file.

    Both are meant inside the folder of the command, unless they are absolute. `run` is the run
    that is attacked, if it is one.
    """

    recipe: str
    data: str
    settings: Mapping[str, Any]
    models: str
    result: Path
    run: Path | None = None


def attack(
    runs: RunsArgument = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Attack recipes on this data instead of runs.", autocompletion=offer_data
        ),
    ] = None,
    recipes: Annotated[
        str | None,
        typer.Option(
            help="With --data: which recipes, with commas.", autocompletion=offer_recipe_lists
        ),
    ] = None,
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
    """Try to tell from a model who took part in its training.

    Trains models on random parts of the people and attacks them. These models are experiments:
    their noise is seeded and protects nobody. What is in the folder is not trained again.
    """
    with plain_errors(EXPERIMENTS_KEPT):
        from privrec.attacks.games import Options

        options = Options(
            kinds=names_between_commas(kinds),
            repetitions=repetitions,
            shadows=shadows,
            people=people,
            seed=seed,
        )
        jobs = _jobs(runs or [], data, recipes, epsilons, set_ or [], seed)
        results = _play(jobs, out, workers, options)
        if json_:
            print_json([result.as_json() for result in results.values()])
            return
        _print_attacks(results)


def _print_attacks(results: Mapping[Path, "Attack"]) -> None:
    rows = [row for result in results.values() for row in _rows(result)]
    if rows:
        print_table("Who took part in training?", _COLUMNS, rows)
        print_line(
            "Guessing has accuracy and AUC 0.5. Except for paper, accuracy is that of the best"
            " threshold. A dash: not measured, or too few people (fewer than 100 for 1 %)."
        )
    for result in results.values():
        for view in result.attacks.server:
            print_line(f"{result.recipe}, {view.phase}: {_server_line(view)}")
    print_line(f"figures: {', '.join(map(str, results))}; pages beside them")


def _play(
    jobs: Sequence[_Job], out: Path | None, workers: int | None, options: "Options"
) -> dict[Path, "Attack"]:
    """Return what each attack reached, by the file that it was written to."""
    from privrec.attacks.membership import play_attack, prepare_attack
    from privrec.data.sources import load
    from privrec.runs.api import open_run
    from privrec.runs.documents import Attack
    from privrec.runs.folder import write_whole
    from privrec.show.attacks import render_attacks
    from privrec.show.write import refresh_report

    loaded = {name: load(name) for name in dict.fromkeys(job.data for job in jobs)}
    folders = [out or Path("runs") / f"attack-{file_name(job.data)}" for job in jobs]
    # All are prepared before any is played: what is wrong with the last is said at once, and so
    # is a file of an earlier attack that cannot be read.
    for job, folder in zip(jobs, folders, strict=True):
        Attack.read(folder / job.result)
    prepared = [
        prepare_attack(
            job.recipe,
            loaded[job.data],
            data=job.data,
            out=folder / job.models,
            options=options,
            settings=job.settings,
        )
        for job, folder in zip(jobs, folders, strict=True)
    ]
    results = {}
    for job, folder, one in zip(jobs, folders, prepared, strict=True):
        with progress() as on_progress:
            result = play_attack(one, workers=workers, on_progress=on_progress)
        place = folder / job.result
        results[place] = _with_earlier(Attack.read(place), result)
        write_whole(place, results[place].text())
        write_whole(place.with_suffix(".html"), render_attacks([results[place]], []).encode())
        if job.run is not None:
            refresh_report(open_run(job.run))
    return results


def _with_earlier(before: "Attack | None", result: "Attack") -> "Attack":
    """Return the result with the kinds of an earlier attack of the same."""
    same = ("recipe", "data", "epsilon", "delta", "repetitions", "seed")
    if before is None or any(getattr(before, key) != getattr(result, key) for key in same):
        return result
    kinds = result.attacks
    earlier = {
        kind: getattr(before.attacks, kind)
        for kind in before.attacks.model_fields_set - kinds.model_fields_set
    }
    return result.model_copy(update={"attacks": kinds.model_copy(update=earlier)})


def _jobs(
    runs: Sequence[Path],
    data: str | None,
    recipes: str | None,
    epsilons: str,
    pairs: Sequence[str],
    seed: int,
) -> list[_Job]:
    """Return what is asked for."""
    from privrec.errors import SettingsError
    from privrec.runs.frontier import jobs_of
    from privrec.settings import parse_overrides

    if bool(runs) == (data is not None):
        raise SettingsError("give either run folders or --data")
    settings = parse_overrides(pairs)
    if data is None:
        return [_like(path, settings, seed) for path in runs]
    if recipes is None:
        raise SettingsError("--data needs --recipes: which ones to attack, with commas")
    if "epsilon" in settings:
        raise SettingsError("`epsilon` is given by --epsilons, not by --set")
    found = []
    budgets = numbers(epsilons, "epsilons")
    for job in jobs_of(recipes.split(","), seeds=[seed], epsilons=budgets):
        budget = {} if job.epsilon is None else {"epsilon": job.epsilon}
        result = Path(f"attack-{job.name.removesuffix(f'-seed-{seed}')}.json")
        asked = {**settings, **budget}
        found.append(
            _Job(recipe=job.recipe, data=data, settings=asked, models=job.name, result=result)
        )
    return found


def _like(run: Path, settings: Mapping[str, Any], seed: int) -> _Job:
    """Return the attack on a run's recipe, with the run's settings and others on top."""
    from privrec.algorithms.recipes import settings_of
    from privrec.attacks.games import OURS
    from privrec.runs.folder import SIMULATION, read_settings

    _, config = read_settings(run, settings_of)
    own = config.model_dump(exclude=set(OURS), exclude_none=True)
    return _Job(
        recipe=config.recipe,
        data=config.data,
        settings={**own, **settings},
        models=f"like-{run.resolve().name}-seed-{seed}",
        result=run.resolve() / SIMULATION / "attack.json",
        run=run,
    )


def _rows(result: "Attack") -> list[tuple[str, ...]]:
    """Return the lines of the table, one for each kind of attack."""
    from privrec.attacks.roc import RATES
    from privrec.runs.documents import Area
    from privrec.runs.figures import KINDS

    epsilon = "none" if result.epsilon is None else f"{result.epsilon:g}"
    rows = []
    for kind in KINDS:
        figures = getattr(result.attacks, kind)
        if figures is None:
            continue
        accuracy, auc = figures.accuracy, figures.auc
        value = accuracy.value if isinstance(accuracy, Area) else accuracy
        rates = [figures.rates.get(f"{rate:g}") for rate in RATES if figures.can_tell(rate)]
        rows.append(
            (
                result.recipe,
                result.data,
                epsilon,
                kind,
                f"{value:.3f}",
                f"{auc.value:.3f}",
                f"{auc.low:.3f} to {auc.high:.3f}",
                *("-" if rate is None else f"{rate.value:.4f}" for rate in rates),
                *["-"] * (len(RATES) - len(rates)),
                "-" if figures.printed is None else f"{figures.printed:.2f}",
            )
        )
    return rows


def _server_line(view: "ServerView") -> str:
    """Return what a curious server reads off one contribution."""
    values = (
        view.items.precision,
        view.items.recall,
        view.likes.precision,
        view.likes.recall,
        view.guessing.precision,
    )
    items, found, likes, liked, popular = (
        "-" if value is None else f"{value:.2f}" for value in values
    )
    return (
        f"a server that sees one contribution names items with precision {items}, recall {found};"
        f" likes {likes}, {liked} (popular ones: {popular})"
    )


_BOUNDS = {"curve": "the ROC area", "one_run": "one run", "clopper_pearson": "Clopper-Pearson"}
AuditOutOption = Annotated[
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

    Made-up people take part in a real training or not, each by a coin. An attacker who sees all
    that is published guesses the coins. How well that goes is a lower bound on epsilon. If it is
    above the ledger's, the exit code is 3. The trained model is thrown away; do not release it.
    """
    with plain_errors():
        from privrec.attacks.audit import audit as run_audit

        _check_place(out)
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
            _write(where, audited, recipe if place else None)
        if json_:
            print_json(audited.as_json())
        else:
            _print_audit(audited, where)
    if audited.holds is False:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _check_place(out: Path | None) -> None:
    from privrec.errors import SettingsError

    if out is not None and out.suffix != ".json":
        raise SettingsError(f"--out must end in .json, a page is written beside it; got {out}")


def _asked(
    recipe: str, data: str | None, epsilon: float | None, pairs: list[str] | None
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


def _write(where: Path, audited: "Audit", run: str | None) -> None:
    """Write the JSON and the page, and the report of a run that was audited."""
    from privrec.runs.api import open_run
    from privrec.runs.folder import write_whole
    from privrec.show.attacks import render_attacks
    from privrec.show.write import refresh_report

    where.parent.mkdir(parents=True, exist_ok=True)
    write_whole(where, audited.text())
    write_whole(where.with_suffix(".html"), render_attacks([], [audited]).encode())
    if run is not None:
        refresh_report(open_run(run))


def _print_audit(audited: "Audit", where: Path | None) -> None:
    ledger, most, area = audited.epsilon_ledger, audited.epsilon_most, audited.auc
    shown = "none (infinite)" if ledger is None else f"{ledger:.3f}"
    rows = [("ledger", shown), ("proved, at least", f"{audited.epsilon_lower:.3f}")]
    for key, name in _BOUNDS.items():
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
