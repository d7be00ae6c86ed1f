"""`privrec attack`: membership inference, at the level of a whole person."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.console import (
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_table,
    progress,
)
from privrec.cli.options import (
    numbers,
    offer_data,
    offer_recipe_lists,
    offer_runs,
    offer_settings,
)
from privrec.cli.stopping import EXPERIMENTS_STOPPED

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
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting of every model; repeat.",
        autocompletion=offer_settings,
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
    epsilons: Annotated[
        str, typer.Option(help="With --data: the budgets of recipes with noise, with commas.")
    ] = "2,5,15",
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
    json_: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout.")
    ] = False,
) -> None:
    """Try to tell from a model who took part in its training.

    Trains models on random parts of the people and attacks them. These models are experiments:
    their noise is seeded and protects nobody. What is in the folder is not trained again.
    """
    with plain_errors(EXPERIMENTS_STOPPED):
        from privrec.attacks.games import check_asked

        how: dict[str, Any] = {
            "kinds": [kind.strip() for kind in kinds.split(",")],
            "repetitions": repetitions,
            "shadows": shadows,
            "people": people,
            "seed": seed,
        }
        check_asked(**how)
        jobs = _jobs(runs or [], data, recipes, epsilons, set_ or [], seed)
        found = _play(jobs, out, workers, how)
        if json_:
            print_json(list(found.values()))
            return
        _show(found)


def _show(found: Mapping[Path, Mapping[str, Any]]) -> None:
    rows = [row for one in found.values() for row in _rows(one)]
    if rows:
        print_table("Who took part in training?", _COLUMNS, rows)
        print_line(
            "Guessing has accuracy and AUC 0.5. Except for paper, accuracy is that of the best"
            " threshold. A dash: not measured, or too few people (fewer than 100 for 1 %)."
        )
    for one in found.values():
        for line in _server_lines(one):
            print_line(line)
    print_line(f"figures: {', '.join(map(str, found))}; pages beside them")


def _play(
    jobs: Sequence[_Job], out: Path | None, workers: int | None, how: Mapping[str, Any]
) -> dict[Path, dict[str, Any]]:
    """Return what each attack reached, by the file that it was written to."""
    from privrec.attacks.membership import play_attack, prepare_attack
    from privrec.attacks.scores import read_along
    from privrec.data.sources import load
    from privrec.runs.api import open_run
    from privrec.runs.documents import ATTACK, read_document
    from privrec.runs.folder import write_whole
    from privrec.show.attacks import render_attacks
    from privrec.show.write import refresh_report

    loaded = {name: load(name) for name in dict.fromkeys(job.data for job in jobs)}
    folders = [out or Path("runs") / f"attack-{file_name(job.data)}" for job in jobs]
    # All are prepared before any is played: what is wrong with the last is said at once, and so
    # is a file of an earlier attack that cannot be read.
    for job, folder in zip(jobs, folders, strict=True):
        read_document(folder / job.result, ATTACK)
    prepared = [
        prepare_attack(
            job.recipe,
            loaded[job.data],
            data=job.data,
            out=folder / job.models,
            settings=job.settings,
            **how,
        )
        for job, folder in zip(jobs, folders, strict=True)
    ]
    found = {}
    for job, folder, one in zip(jobs, folders, prepared, strict=True):
        with progress() as on_progress:
            result = play_attack(one, workers=workers, on_progress=on_progress).as_json()
            result["attacks"] |= read_along(
                job.recipe,
                loaded[job.data],
                settings=job.settings,
                on_progress=on_progress,
                **{name: how[name] for name in ("kinds", "people", "seed")},
            )
        place = folder / job.result
        result = _with_earlier(place, result)
        write_whole(place, (json.dumps(result, indent=2) + "\n").encode())
        write_whole(place.with_suffix(".html"), render_attacks([result], []).encode())
        if job.run is not None:
            refresh_report(open_run(job.run))
        found[place] = result
    return found


def _with_earlier(place: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with the kinds that the file has from an earlier attack of the same."""
    from privrec.runs.documents import ATTACK, read_document

    before = read_document(place, ATTACK) or {}
    same = ("recipe", "data", "epsilon", "delta", "repetitions", "seed")
    if any(before.get(name) != result[name] for name in same):
        return result
    return {**result, "attacks": {**before.get("attacks", {}), **result["attacks"]}}


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


def _rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of the table, one for each kind of attack."""
    from privrec.attacks.roc import RATES
    from privrec.runs.figures import can_tell

    epsilon = "none" if found["epsilon"] is None else f"{found['epsilon']:g}"
    rows = []
    for kind, figures in found["attacks"].items():
        if kind == "server":
            continue
        accuracy, area = figures["accuracy"], figures["auc"]
        value = accuracy["value"] if isinstance(accuracy, dict) else accuracy
        rates = figures.get("rates", {})
        printed = figures.get("printed")
        rows.append(
            (
                found["recipe"],
                found["data"],
                epsilon,
                kind,
                f"{value:.3f}",
                f"{area['value']:.3f}",
                f"{area['low']:.3f} to {area['high']:.3f}",
                *(
                    f"{rates[f'{r:g}']['value']:.4f}" if rates and can_tell(figures, r) else "-"
                    for r in RATES
                ),
                "-" if printed is None else f"{printed:.2f}",
            )
        )
    return rows


def _server_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what a curious server reads off one contribution, a line for each phase."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    return [
        f"{found['recipe']}, {view['phase']}: a server that sees one contribution names items with"
        f" precision {share(view['items']['precision'])}, recall {share(view['items']['recall'])};"
        f" likes {share(view['likes']['precision'])}, {share(view['likes']['recall'])}"
        f" (popular ones: {share(view['guessing']['precision'])})"
        for view in found["attacks"].get("server", [])
    ]
