"""An open run folder: evaluation, privacy guarantee, recommendations and export.

An export is one file with everything of a run that may be released; a phone can rank with it. It is
a zip archive of `model.json` (settings and privacy guarantee), `statement.txt`, `ledger.jsonl`,
`catalogue.json`, and the parameters as `params/NAME.npy`. The same run gives the same bytes.
"""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from privrec.algorithms.privrec_plus.scoring import LIKES, layout_in
from privrec.algorithms.recipe import Plan, Recipe
from privrec.algorithms.recipes import plan_on_device
from privrec.data.added import with_new_items
from privrec.data.catalogue import Catalogue, to_json
from privrec.data.frames import as_polars
from privrec.data.sources import BUILT_IN, load
from privrec.data.text import ITEM_LIST, natural_order, short
from privrec.device import COMPACT, FORMAT, Device, Model, read_model
from privrec.errors import PrivacyWarning, PrivrecError, RunFolderError, SettingsError, check_kind
from privrec.evaluation.references import MEMORY_GB
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import OVER_FLOWER, PrivacyReport, privacy_report
from privrec.runs import folder as records
from privrec.runs.bar import progress_bar
from privrec.runs.documents import Evaluation, RoundFigures, RoundLine
from privrec.runs.evaluate import (
    checked_asked,
    counting,
    ending_of,
    evaluate_run,
    tested_by,
    write_evaluation,
)
from privrec.runs.folder import copied, folder_path
from privrec.runs.journal import load_params
from privrec.runs.ledger import (
    ledger_in,
    ledger_of,
    noise_of,
    server_of,
    settled_ledger,
    too_few_have_learned,
)
from privrec.runs.packing import archive, compact_members, members
from privrec.runs.recommend import (
    SCHEMA,
    Source,
    examples_of,
    groups_of,
    history_frame,
    lists_for,
    names_of,
    newcomers_of,
)
from privrec.settings import RunSettings
from privrec.types import OnProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An open run folder. The data is loaded only when needed; newcomers' lists do not need it."""

    folder: records.RunFolder
    config: RunSettings
    recipe: Recipe
    load_prepared: Callable[[], Plan]

    def __repr__(self) -> str:
        place, config = self.folder, self.config
        kept = " (temporary: `save` keeps it)" if place.is_temporary else ""
        about = f"{short(config.recipe)} on {short(config.data)}, seed {config.seed}"
        return f"Run({about})\n  folder: {short(place.path, 300)}{kept}"

    def save(self, path: str | Path) -> "Run":
        """Copy the run folder to `path`, which must not exist or be empty; return the copy."""
        place = folder_path("path", path)
        if place is None:
            raise SettingsError("`path` must be a path; got None")
        return replace(self, folder=copied(self.folder, place))

    @property
    def history(self) -> pl.DataFrame:
        """A frame with one row for each round.

        Under secure noise it has only the number and the stage of each round, because the other
        columns come from raw data; the setting `diagnostics` adds them.
        """
        return history_frame(self.figures or self._played)

    @property
    def prepared(self) -> Plan:
        """The plan of the run: the recipe with its settings and its data."""
        return self.load_prepared()

    def evaluate(
        self,
        *,
        protocol: str | None = None,
        candidates: str | None = None,
        references: Sequence[str] | None = None,
        memory_gb: float = MEMORY_GB,
        progress: bool = True,
        on_progress: OnProgress | None = None,
    ) -> Evaluation:
        """Return the figures for the test people, by the run's own protocol or another one.

        `references` are the names of reference recommenders that are tested too; None means all
        that fit into `memory_gb` together. In a notebook and in a terminal a bar shows the
        progress, unless `progress` is false; `on_progress` replaces the bar.

        The figures are written to `simulation/evaluation.json`, or for another protocol to a file
        with the protocol in its name. `privrec.write_report` makes a page from them.
        """
        asked = checked_asked(
            protocol=protocol, candidates=candidates, references=references, memory_gb=memory_gb
        )
        self._check_people()
        tested = tested_by(self.prepared, protocol, candidates)
        params = load_params(self.folder)
        with progress_bar(on_progress, progress) as tell:
            evaluation = evaluate_run(tested, params, self.privacy(), asked=asked, on_progress=tell)
        ending = ending_of(self.prepared, tested)
        place = self.folder.evaluation_path.with_stem(f"evaluation{ending}")
        write_evaluation(place, evaluation)
        report = self.folder.report_path.with_stem(f"report{ending}")
        report.unlink(missing_ok=True)  # It shows an older evaluation.
        if _is_public(tested):
            records.write_whole(
                beside_report(report, "examples"), examples_of(tested, params).text()
            )
        return evaluation

    @property
    def is_of_strangers(self) -> bool:
        """Whether a federation trained the run, so that only its nodes know who took part."""
        if records.has_data_mark(self.folder):
            return False
        return server_of(settled_ledger(self.folder)) is not None

    def _check_data(self) -> None:
        """Raise if the data differs from the data that the run started with, as far as is known."""
        if records.has_data_mark(self.folder):
            records.check_data(self.folder, self.prepared.task.federation.fingerprint)

    def _check_people(self) -> None:
        """Raise if the data differs or if the test people may have trained."""
        self._check_data()
        if self.is_of_strangers:
            raise RunFolderError(
                f"{self.folder.path} was trained by a federation: only its nodes know who took"
                " part, so nobody here is known to be someone else; test it on each node, on"
                " people who were held out: privrec federate test (docs/federation.md)"
            )

    def report_path(self, protocol: str | None = None, candidates: str | None = None) -> Path:
        """Return the path of the report for an evaluation with these arguments."""
        if protocol is None and candidates is None:
            return (
                self.folder.report_path
            )  # This path does not depend on the data, which takes time to load.
        ending = ending_of(self.prepared, tested_by(self.prepared, protocol, candidates))
        return self.folder.report_path.with_stem(f"report{ending}")

    @property
    def figures(self) -> list[RoundFigures]:
        """The figures of each round; empty under secure noise without `diagnostics`."""
        return records.read_rounds(self.folder.figures_path, RoundFigures)

    @property
    def _played(self) -> list[RoundLine]:
        return records.read_rounds(self.folder.rounds_path, RoundLine)

    @property
    def rounds(self) -> int:
        """The number of rounds played; fewer than requested if the training stopped early."""
        return len(self._played)

    @property
    def choice(self) -> str:
        """The settings that the recipe chose before the training, as text; "" if there are none."""
        path = self.folder.choice_path
        if not path.is_file():
            return ""
        with records.file_errors(path, "read"):
            return path.read_text(encoding="utf-8").strip()

    @property
    def ledger(self) -> PrivacyLedger:
        """The privacy ledger with every release of the run."""
        return ledger_of(self.folder)

    @property
    def catalogue(self) -> Catalogue:
        """The items and features that the run was trained with."""
        return records.read_catalogue(self.folder)

    def privacy(self) -> PrivacyReport:
        """Return the privacy guarantee of the run, computed from its ledger."""
        lines, ledger = settled_ledger(self.folder), self.ledger
        if ledger.is_private and ledger.entries and not self.config.budget.force_delta:
            users = max(release.sampling.users for release, _ in ledger.entries)
            refuse_large_delta(self.config.budget.delta, users, forced=False)
        named = self.recipe.public_features
        report = privacy_report(
            ledger,
            delta=self.config.budget.delta,
            noise=noise_of(lines),
            without=self.recipe.without_noise,
            server=server_of(lines) or self.recipe.server,
            second=ledger_in(lines, only_noised=True),
            undeclared=self.catalogue.undeclared,
            item_features=named(self.config, self.catalogue) if named else (),
        )
        if any(line.transport for line in lines):
            told = report.statement + OVER_FLOWER, report.short + OVER_FLOWER
            report = replace(report, statement=told[0], short=told[1])
        if few := too_few_have_learned(lines):
            whole, short_ = (f"{words} {few}" for words in (report.statement, report.short))
            report = replace(report, statement=whole, short=short_)
        return replace(report, local_noise=any(line.local_noise for line in lines))

    def model(self) -> Model:
        """Return everything that may be released, in the form that a phone gets."""
        # Read the ledger first, because a missing release is the most important error.
        privacy = self.privacy().as_json()
        return Model(
            params={name: np.asarray(a) for name, a in load_params(self.folder).items()},
            catalogue=self.catalogue,
            settings=self.config.model_dump(mode="json", exclude_none=True),
            privacy=privacy,
        )

    def device(
        self,
        *,
        likes: Sequence[str | int] = (),
        dislikes: Sequence[str | int] = (),
        features: Mapping[str, object] | None = None,
    ) -> Device:
        """Return a newcomer's device, with the trained model and her own data."""
        return self.model().device(likes=likes, dislikes=dislikes, features=features)

    def recommend_many(
        self,
        frame: object = None,
        *,
        top: int = 20,
        progress: bool = True,
        on_progress: OnProgress | None = None,
    ) -> pl.DataFrame:
        """Return lists for many people: columns user, rank, item, title and score.

        Without a `frame` the lists are for everybody in the run's data. A `frame` has newcomers,
        with columns user, item and, optionally, value. Without values each row is a like; with
        values a row may be a dislike. Items that a person has interacted with are not in her list.
        """
        check_kind("top", top, int, "a whole number")
        new = None if frame is None else Source(frame=as_polars(frame))
        with progress_bar(on_progress, progress) as tell:
            frames = self.lists(new=new, top=top, on_progress=tell)
            return pl.concat([pl.DataFrame(schema=SCHEMA), *frames])

    def lists(
        self, *, new: Source | None = None, top: int, on_progress: OnProgress | None = None
    ) -> Iterator[pl.DataFrame]:
        """Return the lists of `recommend_many` in several frames, some people at a time."""
        catalogue = self.catalogue
        if new is not None:
            names, devices = newcomers_of(new, catalogue)
            groups = groups_of(names, devices.take, catalogue.n_items)
        else:
            self._check_data()
            whole = self.prepared.task.whole
            names = names_of(self.config.data, whole)
            groups = groups_of(names, whole.take, catalogue.n_items)
        scorer = plan_on_device(self.config, catalogue).ranker(load_params(self.folder))
        advance = counting(on_progress, "people", names.len())
        return lists_for(scorer, catalogue, groups, top=top, on_progress=advance)


def beside_report(report: Path, name: str) -> Path:
    """Return the JSON file that belongs to a report; `name` is `evaluation` or `examples`."""
    return report.with_name(f"{name}{report.stem.removeprefix('report')}.json")


def _is_public(prepared: Plan) -> bool:
    """Return whether the run's data is a built-in data set: made up, or published by others.

    The data itself is compared, because a user's own data may have the same name.
    """
    data = prepared.task.settings.data
    if data.partition(":")[0] not in BUILT_IN:
        return False
    try:
        return load(data).fingerprint == prepared.task.whole.fingerprint
    except PrivrecError:
        return False  # The built-in data is not on this machine, so this is not it.


class Exported(NamedTuple):
    """An exported model: its bytes, and the model in them.

    `added` is the number of items that were added, or None if no table of items was given.
    """

    content: bytes
    model: Model
    added: int | None


def export_run(run: Run, path: Path, *, items: pl.DataFrame | None = None, where: str = "") -> int:
    """Write everything that may be released of a finished run to a file, atomically.

    The arguments are those of `exported`. Returns the number of added items.
    """
    found = exported(run, str(path), items=items, where=where)
    write_export(found, path)
    return found.added or 0


def write_export(found: Exported, path: Path) -> None:
    """Write an exported model to a file, atomically."""
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: --out takes the name of a file")
    records.write_whole(path, found.content)


def exported(
    run: Run,
    name: str,
    *,
    items: pl.DataFrame | None = None,
    where: str = "",
    compact: bool = False,
) -> Exported:
    """Return everything that may be released of a finished run.

    `items` is a table of items. Items that the run does not have are added from their public
    features. `name` and `where` are the names of the export and of the table in error messages.
    """
    model = run.model()
    if other := [name for name, array in model.params.items() if array.dtype != np.float32]:
        # With neighbour matching, fedgnn has a key and the vectors of single people.
        raise RunFolderError(
            f"a run of {run.config.recipe} with {other[0]!r} cannot be exported: devices were told"
            " this of each other, and it is not for others"
        )
    if compact and LIKES not in model.params:
        raise RunFolderError(
            f"a run of {run.config.recipe} has no compact export: only the models of PrivRec+ have"
        )
    _warn_of_order(model.catalogue)
    known = model.catalogue.n_items
    if items is not None:
        model = _with_more_items(run, model, items, where)
    # The path of the data is private, so it is replaced by the catalogue's name.
    settings = {**model.settings, "data": model.catalogue.name}
    version = COMPACT if compact else FORMAT
    about = {"format": version, "settings": settings, "privacy": dict(model.privacy)}
    with records.file_errors(run.folder.ledger_path, "read"):
        ledger = run.folder.ledger_path.read_bytes()
    texts = {
        "model.json": json.dumps(about, indent=2).encode() + b"\n",
        "statement.txt": model.privacy["statement"].encode() + b"\n",
        "ledger.jsonl": ledger,
        "catalogue.json": to_json(model.catalogue).encode(),
    }
    if compact:
        layout = layout_in(model.catalogue.schema, model.catalogue.n_items, {*model.params})
        arrays = compact_members(model.params, layout)
    else:
        arrays = members(model.params)
    content = archive(texts, arrays)
    # Raises if the file cannot be read or its parameters, catalogue and settings do not fit.
    read_model(io.BytesIO(content), name).device()
    added = None if items is None else model.catalogue.n_items - known
    return Exported(content, model, added)


def _with_more_items(run: Run, model: Model, items: pl.DataFrame, where: str) -> Model:
    """Return the model with the new items of a table; `where` is the table's name in errors.

    The privacy guarantee stays the same, and its text says that items were added.
    """
    if run.recipe.with_items is None:
        raise RunFolderError(
            f"a run of {run.config.recipe} cannot take new items: dp-privrec-plus can,"
            " where items have public features"
        )
    known = model.catalogue.n_items
    catalogue = with_new_items(model.catalogue, items, where)
    params = run.recipe.with_items(run.config, model.params, catalogue, known)
    count = catalogue.n_items - known
    items_were = "1 item was" if count == 1 else f"{count:,} items were"
    added = (
        f" After the training, {items_were} added from public features alone: no person's data was"
        " used for it, and it costs no epsilon."
    )
    told = {key: model.privacy[key] + added for key in ("statement", "short")}
    return replace(model, params=params, catalogue=catalogue, privacy={**model.privacy, **told})


def _warn_of_order(catalogue: Catalogue) -> None:
    """Warn if the order of the items may depend on people's data, as in runs of older versions."""
    ids = list(catalogue.item_ids)
    if ITEM_LIST in catalogue.undeclared and ids != sorted(ids, key=natural_order):
        warnings.warn(
            "the items of this run stand in the order in which they were found, which can tell who"
            " has what: train again before you release it",
            PrivacyWarning,
            stacklevel=3,
        )
