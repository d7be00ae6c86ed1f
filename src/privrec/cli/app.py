"""The `privrec` command. Each command imports what it needs, so `--help` does not import JAX."""

import shlex
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privrec import __version__
from privrec.cli.attack import attack
from privrec.cli.audit import audit
from privrec.cli.bench import bench_app
from privrec.cli.compare import compare, frontier
from privrec.cli.console import (
    file_name,
    plain_errors,
    print_json,
    print_line,
    print_privacy,
    print_table,
    progress,
    time_text,
)
from privrec.cli.data import data_app
from privrec.cli.federate import federate_app
from privrec.cli.options import (
    HelpAllOption,
    JsonOption,
    PlainUsage,
    ProtocolOption,
    RunArgument,
    SetOption,
    examples,
    offer_data,
    offer_recipes,
    settings_from,
)
from privrec.cli.privacy import privacy_app
from privrec.cli.rank import evaluate, recommend
from privrec.cli.recipes import recipes
from privrec.cli.stopping import end_at_second_interrupt, keep_interrupts, training_stopped
from privrec.cli.watch import report, watch
from privrec.data.text import data_title

if TYPE_CHECKING:
    from privrec.runs.api import Plan
    from privrec.runs.run import Run

FIRST_STEPS = """First steps:

privrec train privrec-plus --out runs/first

privrec evaluate runs/first

privrec recommend runs/first --like "The Silent Harbour"

privrec recipes dp-privrec-plus

Every command has --help. Ctrl-C stops; a training goes on with --resume."""

app = typer.Typer(
    cls=PlainUsage,
    help="A federated recommender with user-level differential privacy.",
    epilog=FIRST_STEPS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="A built-in name or a data folder.",
        show_default="synthetic",
        autocompletion=offer_data,
    ),
]
OutOption = Annotated[
    Path | None, typer.Option(help="The run folder.", show_default="runs/RECIPE-DATA-SEED")
]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.", dir_okay=False)]
SeedOption = Annotated[
    int | None, typer.Option(help="The seed; secure noise does not use it.", show_default="0")
]
RecipeArgument = Annotated[
    str,
    typer.Argument(help="A recipe; 'privrec recipes' lists them.", autocompletion=offer_recipes),
]
RoundsOption = Annotated[
    int | None, typer.Option(help="Rounds to play.", show_default="the recipe's")
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(help="The privacy budget; the noise is calibrated to it unless it is given."),
]
DeltaOption = Annotated[
    float | None, typer.Option(help="The delta of the guarantee.", show_default="1e-06")
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        help="The noise, instead of an epsilon; see 'privrec privacy epsilon --help'.", hidden=True
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the interrupted run in --out, under its settings."),
]

StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict", help="Refuse noise unless the data declares all it must.", hidden=True
    ),
]
ForceDeltaOption = Annotated[
    bool, typer.Option("--force-delta", help="Accept a delta of 1/N or more.", hidden=True)
]
DiagnosticsOption = Annotated[
    bool,
    typer.Option(
        "--diagnostics",
        help="Write losses and counts also under secure noise: raw figures, not for release.",
        hidden=True,
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Only print what it would cost: privacy, time, memory."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print_line(f"privrec {__version__}")
        raise typer.Exit


@app.command(
    epilog=examples(
        "privrec train privrec-plus --data synthetic --out runs/first",
        "privrec train dp-privrec-plus --epsilon 4 --dry-run",
        "privrec train privrec-plus --out runs/first --resume",
    )
)
def train(
    recipe: RecipeArgument,
    data: DataOption = None,
    out: OutOption = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    rounds: RoundsOption = None,
    protocol: ProtocolOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    noise_multiplier: NoiseOption = None,
    resume: ResumeOption = False,
    strict: StrictOption = False,
    force_delta: ForceDeltaOption = False,
    diagnostics: DiagnosticsOption = False,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
    help_all: HelpAllOption = False,
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
            "noise_multiplier": noise_multiplier,
            "force_delta": force_delta or None,
            "diagnostics": diagnostics or None,
        }
        settings = settings_from(config, set_ or [], options)
        named = settings.pop("data", None)
        data = _data_of(out if resume else None) if named is None else str(named)
        configure(recipe, data, settings)  # A wrong setting is found before any data is read.
        del settings["recipe"]
        if dry_run:
            _say_plan(plan(recipe, data, **settings), json_)
            return
        path = out or Path("runs") / f"{recipe}-{file_name(data)}-{settings.get('seed', 0)}"
        run_options: Any = {"out": path, "resume": resume, "strict": strict}
        with plain_errors(lambda: training_stopped(recipe, path)), progress() as on_progress:
            run = train_run(recipe, data, **run_options, on_progress=on_progress, **settings)
        if json_:
            found = run.privacy().as_json()
            keys = ("epsilon", "epsilon_of_mechanism", "delta", "stage_two_epsilon")
            privacy = {key: found[key] for key in keys}
            print_json({"run": str(run.folder.path), "rounds": run.rounds, "privacy": privacy})
        else:
            _say_what_was_trained(run)


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Write what may be released of a run to one file: model, catalogue, statement, ledger."""
    with plain_errors():
        from privrec.privacy.statement import headline
        from privrec.runs.api import open_run
        from privrec.runs.run import export_run

        opened = open_run(run)
        export_run(opened, out)
        print_line(f"exported {opened.config.recipe}: {out}, {out.stat().st_size:,} bytes")
        promised = headline(opened.privacy().as_json())
        print_line(f"privacy: {promised}; the statement is in the file, as statement.txt")


_COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    evaluate: ("privrec evaluate runs/first", "privrec evaluate runs/first --json"),
    recommend: (
        'privrec recommend runs/first --like "The Silent Harbour" --like i3',
        "privrec recommend runs/first --everybody --out lists.csv",
    ),
    compare: (
        "privrec compare runs/first runs/second --html both.html",
        "privrec compare --data synthetic --recipes privrec-plus,ease --seeds 0,1",
    ),
    report: ("privrec report runs/first", "privrec report runs/first --open"),
    watch: ("privrec watch runs/first", "privrec watch"),
    export: ("privrec export runs/first --out model.privrec",),
    recipes: ("privrec recipes", "privrec recipes dp-privrec-plus"),
    frontier: ("privrec frontier --data synthetic --epsilons 1,4,inf",),
    attack: (
        "privrec attack runs/first",
        "privrec attack --data synthetic --recipes privrec --kinds loss",
    ),
    audit: ("privrec audit dp-privrec-plus --epsilon 4", "privrec audit runs/first"),
}
"""The other commands, in the order of --help, with their examples."""
for _command, _lines in _COMMANDS.items():
    app.command(epilog=examples(*_lines))(_command)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")
app.add_typer(federate_app, name="federate")
app.add_typer(bench_app, name="bench")


def main() -> None:
    """Run the command line."""
    end_at_second_interrupt()
    keep_interrupts()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal of another encoding gets a question mark and not a traceback.
            stream.reconfigure(errors="replace")
    app()


def _say_what_was_trained(run: "Run") -> None:
    from privrec.privacy.statement import headline
    from privrec.runs.evaluate import nobody_to_test
    from privrec.show.report import kept_line, mark_line

    config, privacy = run.config, run.privacy().as_json()
    data = data_title(run.catalogue.name, config.data)
    print_line(f"trained {config.recipe} on {data}: {run.folder.path}")
    if config.budget.mechanism != "none":
        print_privacy(privacy, "`privrec report`")
    else:
        print_line(f"privacy: {headline(privacy)}")
    asked = sum(stage.rounds for stage in run.prepared.stages())
    epsilon = config.budget.epsilon
    if epsilon is not None and run.rounds < asked:
        print_line(
            f"stopped after {run.rounds} of {asked} rounds: the budget, epsilon"
            f" {epsilon:g}, affords no more"
        )
    about = config.model_dump(include={"data", "protocol", "candidates"})
    for line in filter(None, (mark_line(about, run.figures), kept_line(run.figures))):
        print_line(line)
    place = shlex.quote(str(run.folder.path))
    if nobody := nobody_to_test(run.prepared):
        print_line(nobody)
        print_line(f"next: privrec recommend {place} --like ITEM")
    else:
        print_line(f"next: privrec evaluate {place}")
    print_line(f"or:   privrec export {place} --out model.privrec")


def _say_plan(found: "Plan", json_: bool) -> None:
    from privrec.privacy.statement import epsilon_text

    if json_:
        print_json(found.as_json())
        return
    for stage in found.stages:
        sampling = stage.release.sampling
        rounds = "1 round" if stage.rounds == 1 else f"{stage.rounds:,} rounds"
        print_line(f"{stage.name}: {rounds} of {sampling.cohort:,} of {sampling.users:,} people")
    if found.epsilon is not None:
        seeded = "" if found.config.budget.draws_in_secret else " of the mechanism (seeded noise)"
        epsilon = f"epsilon{seeded} {epsilon_text(found.epsilon)}"
        print_line(f"all of it: {epsilon} at delta {found.config.budget.delta:g}")
    for line in (*_machine_lines(found), *(f"warning: {said}" for said in found.warnings)):
        print_line(line)
    rows = [
        (
            share.what,
            f"{share.bytes_down:,}",
            f"{share.bytes_up:,}",
            "-" if share.multiply_adds is None else f"{share.multiply_adds:,}",
            f"{share.milliseconds:.2f}",
        )
        for share in found.devices
    ]
    if not rows:
        print_line("nothing is asked of a phone: all data is collected in one place")
        return
    columns = ("a phone's part", "bytes down", "bytes up", "multiply-adds", "ms, one core")
    print_table("One person of usual size", columns, rows)


def _machine_lines(found: "Plan") -> list[str]:
    """Return what a run takes on this machine, and how many items it tells apart."""
    from privrec.simulate.cost import in_gb

    known = [share.time_seconds for share in found.machine if share.time_seconds is not None]
    unknown = [share.stage for share in found.machine if share.time_seconds is None]
    without = f" without {', '.join(unknown)}" if unknown else ""
    time, memory = time_text(sum(known)), in_gb(found.peak_bytes)
    lines = [f"on this machine, estimated from a sample: about {time}{without}, {memory} of memory"]
    if found.items is not None:
        noised = found.config.budget.mechanism != "none"
        all_ = found.items == found.catalogue and not noised
        count = f"{'at most ' if noised else ''}{found.items:,} of {found.catalogue:,}"
        rest = "; the others rank after them, by popularity"
        lines.append(f"items: {f'all {found.items:,}' if all_ else count} get a vector")
        lines[-1] += "" if all_ else rest
    return lines


def _data_of(run: Path | None) -> str:
    """Return the data of the run to resume, or the default data of a new run."""
    from privrec.runs.folder import read_run

    if run is None or not (run / "config.toml").is_file():
        return "synthetic"
    return str(read_run(run)[1]["data"])
