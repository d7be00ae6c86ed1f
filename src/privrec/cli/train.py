"""`privrec train`: training simulated on this machine, or with --dry-run only its cost."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privrec.cli.console import (
    NOTHING_KEPT,
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_privacy,
    print_table,
    progress,
)
from privrec.cli.options import (
    ConfigOption,
    DataOrDefault,
    EpsilonOption,
    ForceDeltaOption,
    JsonOption,
    ProtocolOption,
    RecipeArgument,
    RoundsOption,
    SeedOption,
    SetOption,
    settings_from,
)
from privrec.data.text import data_title, in_gb

if TYPE_CHECKING:
    from privrec.runs.api import Plan
    from privrec.runs.run import Run

OutOption = Annotated[
    Path | None, typer.Option(help="The run folder.", show_default="runs/RECIPE-DATA-SEED")
]
DeltaOption = Annotated[
    float | None, typer.Option(help="The delta of the guarantee.", show_default="1e-06")
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the interrupted run in --out, under its settings."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse noise unless the data declares all it must.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only print what it would cost: privacy, time, memory.")
]


def train(
    recipe: RecipeArgument,
    data: DataOrDefault = None,
    out: OutOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    rounds: RoundsOption = None,
    protocol: ProtocolOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    force_delta: ForceDeltaOption = False,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
) -> None:
    """Train a recipe, simulated on this machine; writes a run folder.

    The command line overrides --config, which may be the config.toml of another run.
    """
    with plain_errors():
        from privrec.algorithms.recipes import configure
        from privrec.runs.api import plan
        from privrec.runs.loop import train as train_run

        options = {
            "recipe": recipe,
            "data": data,
            "seed": seed,
            "rounds": rounds,
            "protocol": protocol,
            "epsilon": epsilon,
            "delta": delta,
            "force_delta": force_delta or None,
        }
        settings = settings_from(config, set_, options)
        named = settings.pop("data", None)
        data = _data_of(out if resume else None) if named is None else str(named)
        configure(recipe, data, settings)  # Find a wrong setting before any data is read.
        del settings["recipe"]
        if dry_run:
            _print_plan(plan(recipe, data, **settings), json_)
            return
        path = out or Path("runs") / f"{recipe}-{file_name(data)}-{settings.get('seed', 0)}"
        run_options: Any = {"out": path, "resume": resume, "strict": strict}
        with plain_errors(lambda: _what_is_kept(recipe, path)), progress() as on_progress:
            run = train_run(recipe, data, **run_options, on_progress=on_progress, **settings)
        if json_:
            promised = run.privacy().as_json()
            keys = ("epsilon", "epsilon_of_mechanism", "delta", "stage_two_epsilon")
            privacy = {key: promised[key] for key in keys}
            print_json({"run": str(run.folder.path), "rounds": run.rounds, "privacy": privacy})
        else:
            _print_trained(run)


def _what_is_kept(recipe: str, path: Path) -> str:
    """Return a message for a stopped training: its last saved round, and how to continue."""
    from privrec.errors import PrivrecError
    from privrec.runs.folder import RunFolder, is_untouched, played_rounds

    folder = RunFolder(path=path)
    try:
        if not folder.config_path.is_file() or is_untouched(path):
            return NOTHING_KEPT
        saved = played_rounds(folder)
    except PrivrecError:
        return f"stopped; {path} has what is kept"
    again = shlex.join(["privrec", "train", recipe, "--out", str(path), "--resume"])
    return f"stopped at round {saved}; go on with: {again}"


def _print_trained(run: "Run") -> None:
    from privrec.privacy.statement import headline
    from privrec.runs.evaluate import nobody_to_test
    from privrec.show.report import kept_line

    config, privacy = run.config, run.privacy()
    data = data_title(run.catalogue.name, config.data)
    print_line(f"trained {config.recipe} on {data}: {run.folder.path}")
    if config.budget.mechanism != "none":
        print_privacy(privacy, "`privrec report`")
    else:
        print_line(f"privacy: {headline(privacy.as_json())}")
    asked = sum(stage.rounds for stage in run.prepared.stages())
    epsilon = config.budget.epsilon
    if epsilon is not None and run.rounds < asked:
        print_line(
            f"stopped after {run.rounds} of {asked} rounds: the budget, epsilon"
            f" {epsilon:g}, affords no more"
        )
    for line in filter(None, (run.choice, kept_line(run.figures))):
        print_line(line)
    place = shlex.quote(str(run.folder.path))
    if nobody := nobody_to_test(run.prepared):
        print_line(nobody)
        print_line(f"next: privrec recommend {place} --like ITEM")
    else:
        print_line(f"next: privrec evaluate {place}")
    print_line(f"or:   privrec export {place} --out model.privrec")


def _print_plan(planned: "Plan", json_: bool) -> None:
    from privrec.privacy.statement import epsilon_text

    if json_:
        print_json(planned.as_json())
        return
    for stage in planned.stages:
        sampling = stage.release.sampling
        rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds:,} rounds"
        print_line(f"{stage.name}: {rounds} of {sampling.cohort:,} of {sampling.users:,} people")
    if planned.epsilon is not None:
        seeded = "" if planned.config.budget.draws_in_secret else " of the mechanism (seeded noise)"
        epsilon = f"epsilon{seeded} {epsilon_text(planned.epsilon)}"
        print_line(f"all of it: {epsilon} at delta {planned.config.budget.delta:g}")
    for line in (
        *planned.path,
        *_machine_lines(planned),
        *(f"warning: {said}" for said in planned.warnings),
    ):
        print_line(line)
    rows = [
        (
            share.what,
            f"{share.bytes_down:,}",
            f"{share.bytes_up:,}",
            "-" if share.multiply_adds is None else f"{share.multiply_adds:,}",
            f"{share.milliseconds:.2f}",
        )
        for share in planned.devices
    ]
    if not rows:
        print_line("nothing is asked of a phone: all data is collected in one place")
        return
    columns = ("a phone's part", "bytes down", "bytes up", "multiply-adds", "ms, one core")
    print_table("One person of usual size", columns, rows)


def _machine_lines(planned: "Plan") -> list[str]:
    """Return the cost of a run on this machine, and its number of items with a vector."""
    from privrec.runs.figures import duration

    known = [share.time_seconds for share in planned.machine if share.time_seconds is not None]
    unknown = [share.stage for share in planned.machine if share.time_seconds is None]
    without = f" without {', '.join(unknown)}" if unknown else ""
    choice = planned.choice
    known += [choice.time_seconds] if choice and choice.time_seconds else []
    time, memory = duration(max(1.0, sum(known))), in_gb(planned.peak_bytes)
    lines = [f"on this machine, estimated from a sample: about {time}{without}, {memory} of memory"]
    if choice and choice.time_seconds is not None:
        lines.append(
            f"settings are chosen first: {duration(choice.time_seconds)} of it; the stages are"
            " those of the largest run that this may lead to"
        )
    if planned.items is not None:
        noised = planned.config.budget.mechanism != "none"
        all_ = planned.items == planned.catalogue and not noised
        count = f"{'at most ' if noised else ''}{planned.items:,} of {planned.catalogue:,}"
        rest = "; the others rank after them, by popularity"
        lines.append(f"items: {f'all {planned.items:,}' if all_ else count} get a vector")
        lines[-1] += "" if all_ else rest
    return lines


def _data_of(run: Path | None) -> str:
    """Return the data of the run to resume, or the default data of a new run."""
    from privrec.runs.folder import read_run

    if run is None or not (run / "config.toml").is_file():
        return "synthetic"
    return str(read_run(run)[1]["data"])
