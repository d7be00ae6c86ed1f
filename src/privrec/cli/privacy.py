"""`privrec privacy`: computes epsilon and noise; it needs no data."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line, print_table, progress
from privrec.cli.options import DeltaOption, ForceDeltaOption, JsonOption, RunsArgument, examples

if TYPE_CHECKING:
    from privrec.privacy.ledger import PrivacyLedger

_EPSILON = "privrec privacy epsilon --users 600 --cohort 6 --rounds 9 --noise-multiplier 1"
_LEDGER = "privrec privacy epsilon --ledger runs/first/ledger.jsonl"
_CALIBRATE = "privrec privacy calibrate --users 6000 --cohort 100 --rounds 50 --epsilon 4"

privacy_app = typer.Typer(
    help="Compute epsilon from the noise, and the noise from epsilon.",
    no_args_is_help=True,
    epilog=examples(_EPSILON, _CALIBRATE),
)

_users = typer.Option(help="People who train.")
_cohort = typer.Option(help="People per round; under Poisson on average.")
_rounds = typer.Option(min=1, help="Rounds, each of which is one release.")
SamplingOption = Annotated[
    str,
    typer.Option(
        help="poisson (add or remove one person) or fixed (replace one person).",
        metavar="poisson|fixed",
    ),
]
MechanismOption = Annotated[
    str, typer.Option(help="gaussian (L2 bound) or laplace (L1 bound).", metavar="gaussian|laplace")
]
NoiseOption = Annotated[
    float | None,
    typer.Option(
        help="Noise scale on the sum, divided by its sensitivity: the clip norm under poisson,"
        " twice that under fixed."
    ),
]


@privacy_app.command(epilog=examples(_EPSILON, _LEDGER))
def epsilon(
    users: Annotated[int | None, _users] = None,
    cohort: Annotated[int | None, _cohort] = None,
    rounds: Annotated[int, _rounds] = 1,
    noise_multiplier: NoiseOption = None,
    delta: DeltaOption = 1e-6,
    sampling: SamplingOption = "poisson",
    mechanism: MechanismOption = "gaussian",
    ledger: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A ledger.jsonl to count instead; repeat."),
    ] = None,
    force_delta: ForceDeltaOption = False,
    json_: JsonOption = False,
) -> None:
    """Print the epsilon of training with this noise, or the total epsilon of ledger files.

    `privrec privacy spent` adds up run folders, and checks more.
    """
    with plain_errors():
        from privrec.errors import SettingsError
        from privrec.privacy.calibrate import refuse_large_delta
        from privrec.privacy.ledger import PrivacyLedger, check_delta
        from privrec.privacy.questions import law_of, mechanism_of
        from privrec.privacy.release import Release
        from privrec.runs.ledger import ledger_in, noise_of, read_ledger_file

        check_delta(delta)
        if ledger:
            lines = [line for path in ledger for line in read_ledger_file(path)]
            whole = ledger_in(lines)
            people = max(one.sampling.users for one, _ in whole.entries)
            refuse_large_delta(delta, people, forced=force_delta)
            _print_epsilon(whole, delta, json_, seeded=noise_of(lines) == "seeded")
            return
        if users is None or cohort is None or noise_multiplier is None:
            raise SettingsError("give --users, --cohort and --noise-multiplier, or a --ledger")
        law = law_of(sampling, users, cohort, delta, forced=force_delta)
        kind = mechanism_of(mechanism)
        release = Release(mechanism=kind, sampling=law, noise_multiplier=noise_multiplier)
        _print_epsilon(PrivacyLedger().record(release, rounds), delta, json_)


@privacy_app.command(epilog=examples(_CALIBRATE))
def calibrate(
    users: Annotated[int, _users],
    cohort: Annotated[int, _cohort],
    rounds: Annotated[int, _rounds],
    epsilon: Annotated[float, typer.Option(help="The epsilon to keep within.")],
    delta: DeltaOption = 1e-6,
    sampling: SamplingOption = "poisson",
    mechanism: MechanismOption = "gaussian",
    force_delta: ForceDeltaOption = False,
    json_: JsonOption = False,
) -> None:
    """Print the least noise that keeps training within an epsilon."""
    with plain_errors():
        from privrec.privacy.calibrate import calibrate as find
        from privrec.privacy.ledger import PrivacyLedger
        from privrec.privacy.questions import law_of, mechanism_of
        from privrec.privacy.release import Release

        law = law_of(sampling, users, cohort, delta, forced=force_delta)
        kind = mechanism_of(mechanism)
        noise = find(law, rounds=rounds, epsilon=epsilon, delta=delta, mechanism=kind)
        release = Release(mechanism=kind, sampling=law, noise_multiplier=noise)
        _print_epsilon(PrivacyLedger().record(release, rounds), delta, json_, calibrated=True)


@privacy_app.command(epilog=examples("privrec privacy spent runs/first runs/second"))
def spent(
    runs: RunsArgument,
    delta: DeltaOption = 1e-6,
    same_people: Annotated[
        bool,
        typer.Option("--same-people", help="Add up runs whose populations have different names."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Print the total cost of runs on the same people, by their ledgers.

    Runs whose populations have different names are refused. If the noise of a run was seeded, there
    is no guarantee, alone or together. Then the printed figure is the epsilon of the mechanism.
    """
    with plain_errors():
        from privrec.runs.ledger import add_up

        of_runs, together = add_up(runs, delta, same_people=same_people)
        if json_:
            each = {name: asdict(figures) for name, figures in of_runs.items()}
            print_json({"runs": each, "together": asdict(together)})
            return
        rows = [
            (name, str(f.releases), _shown(f.epsilon, "none"), _shown(f.epsilon_rdp, "none"))
            for name, f in (*of_runs.items(), ("together", together))
        ]
        print_table(f"Spent at delta {delta:g}", ("", "releases", "epsilon", "by RDP"), rows)
        for name, figures in of_runs.items():
            if figures.noise == "seeded":
                print_line(f"no guarantee: the noise of {name} came from its seed")
            elif figures.epsilon is None:
                print_line(f"no guarantee: {name} has releases without noise")
        if together.epsilon is None and together.epsilon_of_mechanism is not None:
            known = _shown(together.epsilon_of_mechanism)
            print_line(f"with secure noise it would be {known} together")


@privacy_app.command(epilog=examples("privrec privacy paper-tables"))
def paper_tables(json_: JsonOption = False) -> None:
    """Print the paper's two tables of epsilon beside the real cost of its settings."""
    with plain_errors():
        from privrec.privacy.paper import paper_tables as cells

        found = []
        with progress() as on_progress:
            for cell in cells():
                found.append(cell)
                on_progress("cells", len(found), 36)
        if json_:
            print_json([asdict(cell) for cell in found])
            return
        for data in dict.fromkeys(cell.data for cell in found):
            mine = [cell for cell in found if cell.data == data]
            columns = ("cohort", "delta", "paper", "per client", "per round", "RDP", "tight")
            rows = [
                (
                    f"{cell.cohort}",
                    f"{cell.delta:g}",
                    f"{cell.paper:.4f}",
                    f"{cell.per_client:.4f}",
                    f"{cell.per_round:.4f}",
                    *(_shown(x) for x in (cell.rdp, cell.tight, cell.poisson, cell.poisson_half)),
                )
                for cell in mine
            ]
            title = f"epsilon on {data}: {mine[0].users} people, z = 1, 1000 rounds"
            print_table(title, (*columns, "Poisson", "Poisson, s = S"), rows)
        print_line(
            "per client: autodp's bound composed once for each client, which gives the paper's"
            " figures (the paper cuts off the fifth decimal); per round: the same bound composed"
            " once for each release. RDP and tight: ours, for the paper's cohorts and noise,"
            " replacing one person. Poisson: ours for Poisson cohorts, adding or removing one"
            " person, with the paper's noise 2S on the sum, and with S."
        )


def _print_epsilon(
    ledger: "PrivacyLedger",
    delta: float,
    json_: bool,
    *,
    calibrated: bool = False,
    seeded: bool = False,
) -> None:
    from privrec.privacy.questions import epsilon_document, meaning

    document = epsilon_document(ledger, delta, seeded=seeded)
    (first, _), *others = ledger.entries
    if json_:
        more = {"noise_multiplier": first.noise_multiplier} if calibrated else {}
        print_json({**document, **more})
        return
    if others:
        rows = [
            (
                f"{count:,}",
                f"{one.sampling.cohort:,} of {one.sampling.users:,}",
                one.mechanism,
                f"{one.joint_multiplier:.6g}",
            )
            for one, count in ledger.entries
        ]
        print_table("Releases", ("rounds", "people", "noise", "multiplier"), rows)
    found = f"epsilon {_shown(document['epsilon'])} at delta {delta:g}: {document['adjacency']}"
    for line in (found, f"cross-check by RDP: {_shown(document['epsilon_rdp'])}"):
        print_line(line)
    print_line(meaning(ledger, document))
    if not others:
        print_line(
            f"noise_multiplier {first.noise_multiplier:g}: on the sum of the updates, noise of"
            f" {document['noise_std_over_clip']:g} times the clip norm"
        )


def _shown(epsilon: float | None, infinite: str = "infinite (no guarantee)") -> str:
    from privrec.privacy.statement import epsilon_text

    return infinite if epsilon is None else epsilon_text(epsilon, 4)
