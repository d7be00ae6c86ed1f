"""Writes the pages of a run folder: the report, the privacy guarantee, attacks and audits."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from privrec.data.text import data_title
from privrec.runs.api import open_run
from privrec.runs.documents import Attack, Audit, Evaluation, Examples, Privacy, summary
from privrec.runs.folder import RunFolder, read_evaluation, write_whole
from privrec.runs.ledger import settled_ledger
from privrec.runs.run import Run, beside_report
from privrec.show.attacks import render_attacks
from privrec.show.page import beside
from privrec.show.promise import render_privacy
from privrec.show.report import Beside, render_begun, render_report


def write_report(
    run: Run | str | Path, *, protocol: str | None = None, candidates: str | None = None
) -> Path:
    """Write the report of a run from the files in its folder; return the path of the report.

    `run` is a run, its folder, or a folder that `privrec.evaluate(…, out=…)` wrote. `protocol` and
    `candidates` select an evaluation by another protocol, as in `run.evaluate`. Without an
    evaluation, the report has the privacy guarantee, the rounds and the settings. The pages of the
    guarantee, of attacks and of audits are written too.
    """
    if not isinstance(run, Run):
        folder = RunFolder(path=Path(run))
        if folder.evaluation_path.is_file() and not folder.config_path.exists():
            return _write_own(folder)
        run = open_run(run)
    place = run.report_path(protocol, candidates)
    _write_pages(run, place)
    write_attacks(run.folder)
    return place


def write_missing_reports(places: Iterable[Path]) -> None:
    """Write the reports of runs that have none."""
    for place in places:
        if not RunFolder(path=place).report_path.is_file():
            write_report(place)


def refresh_report(run: Run) -> None:
    """Write the pages again after an attack or audit; the report only if there is an evaluation."""
    write_attacks(run.folder)
    if run.folder.evaluation_path.is_file():
        write_report(run)


def write_attacks(folder: RunFolder) -> None:
    """Write the pages of attacks and audits, with links to the other pages of the run."""
    for document in (Attack.read(folder.attack_path), Audit.read(folder.audit_path)):
        if document is not None:
            name = "attack.html" if isinstance(document, Attack) else "audit.html"
            place = folder.report_path.with_name(name)
            write_whole(place, render_attacks(document, links=beside(place)).encode())


def _write_pages(run: Run, place: Path) -> None:
    folder, settings = run.folder, run.config.model_dump()
    data = data_title(run.catalogue.name, run.config.data)
    title = f"{run.config.recipe} on {data}, seed {run.config.seed}"
    ledger = settled_ledger(folder)
    privacy = Privacy.model_validate(run.privacy().as_json())
    examples = Examples.read(beside_report(place, "examples"))
    shown = Beside(
        summary=run.recipe.summary,
        ledger=ledger,
        examples=examples.examples if examples else (),
        attacked=summary(Attack.read(folder.attack_path), Audit.read(folder.audit_path)),
        links=beside(place, sure=["privacy"]),
    )
    source = beside_report(place, "evaluation")
    if source.is_file():
        evaluation = read_evaluation(folder.path, source.name)
        page = render_report(evaluation, run.figures, settings, shown)
    else:
        step = f"privrec evaluate {shlex.quote(str(folder.path))}"
        if run.is_of_strangers:
            step = "privrec federate test NODE --model model.privrec"
        page = render_begun(title, privacy, run.figures, settings, next_step=step, beside=shown)
    write_whole(place, page.encode())
    write_whole(folder.privacy_path, render_privacy(title, privacy, ledger).encode())
    place.with_name("privacy.html").unlink(missing_ok=True)  # Older versions wrote it there.


def _write_own(folder: RunFolder) -> Path:
    """Write the report of a user's own recommender, which has no rounds and few settings."""
    evaluation = Evaluation.read(folder.evaluation_path)
    if evaluation is not None:
        names = ("recipe", "data", "seed", "protocol", "candidates")
        settings = {name: getattr(evaluation, name) for name in names}
        write_whole(folder.report_path, render_report(evaluation, [], settings).encode())
    return folder.report_path
