"""Tests your own recommender on the same people and interactions as a run."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.algorithms.recipe import Plan, Task
from privrec.algorithms.recipes import recipe_names, with_protocol
from privrec.core.scorer import Scores, TableScorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.data.sources import named
from privrec.data.text import safe_text
from privrec.errors import RunFolderError, ScorerError, SettingsError, check_kind, got
from privrec.evaluation.protocols import resolve
from privrec.evaluation.references import likes_of
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import CENTRAL, privacy_report
from privrec.runs import folder as records
from privrec.runs.bar import progress_bar
from privrec.runs.documents import Evaluation
from privrec.runs.evaluate import checked_asked, evaluate_run, write_evaluation
from privrec.settings import RunSettings, make_settings
from privrec.types import OnProgress

Score = Callable[[sp.csr_array], Any]
"""A function from the likes of some people, (people, items), to scores of the same shape."""
Fit = Callable[..., Score]
"""A function `fit(likes)` or `fit(likes, catalogue)` that returns the scoring function."""


def evaluate(
    scorer: Fit,
    data: object,
    *,
    protocol: str | None = None,
    candidates: str | None = None,
    seed: int = 0,
    name: str | None = None,
    references: Sequence[str] | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Return the figures of your own recommender, beside those of the same references as for a run.

    `scorer` is a function `fit(likes) -> score`. `likes` is a CSR array (people, items): 1 where a
    person likes an item. Its rows are the people who train; under `halves` also the validation
    people. If `fit` has a second parameter without a default, it also gets the catalogue.
    `score(seen)` gets the likes on the devices of some people, in the same form. It returns an
    array (people, items), where a higher score is better.

    The people who train, the test people and the test items are those of a run with the same data,
    protocol and seed. `data` is an input of `train`. There is no privacy guarantee, because the
    recommender may use everybody's raw data. `out` is a folder for the figures, which
    `privrec compare` and `privrec.write_report` accept. `progress` and `on_progress` are as in
    `run.evaluate`.
    """
    asked = checked_asked(protocol=protocol, candidates=candidates, references=references)
    if not callable(scorer):
        raise SettingsError(f"`scorer` must be a function fit(likes) -> score; got {got(scorer)}")
    called = _name_of(scorer) if name is None else name
    _check_name(called)
    place = None if out is None else _place(out)
    called_data, read = named(data)
    whole = read()
    tested_by, among = resolve(protocol, candidates, whole)
    values = {"recipe": called, "data": called_data, "seed": seed}
    values |= {"protocol": tested_by, "candidates": among}
    flat: list[bool] = []
    prepared = _prepared(make_settings(RunSettings, values), whole, scorer, flat)
    with progress_bar(on_progress, progress) as tell:
        found = evaluate_run(prepared, {}, _NO_PRIVACY, asked=asked, on_progress=tell)
    if 2 * sum(flat) > len(flat):
        warnings.warn(_FLAT.format(called, sum(flat), len(flat)), UserWarning, stacklevel=2)
    if place is not None:
        # As in a run folder, figures from raw data are in `simulation/`.
        write_evaluation(place, found)
    return found


_FLAT = (
    "{}: {:,} of {:,} people have the same score for all items that they did not like before; ties"
    " get the middle rank, so these figures depend on the number of items alone"
)

_NO_PRIVACY = privacy_report(PrivacyLedger(), delta=1e-6, noise="secure", without=CENTRAL)


def _prepared(settings: RunSettings, whole: Federation, fit: Fit, flat: list[bool]) -> Plan:
    """Return the fitted recommender as the plan of a run without training stages.

    `flat` gets a value for each scored person: whether all items have the same score.
    """
    config, protocol = with_protocol(settings, whole)
    split, federation = protocol.roles(whole), protocol.training(whole)
    n_items, name = federation.n_items, config.recipe
    people = [likes_of(federation.take(part), n_items) for part in chunks(split.fitted)]
    given = (sp.csr_array(sp.vstack(people, format="csr")),)
    # A copy, so that the function cannot change the data.
    arguments = (*given, deepcopy(federation.catalogue)) if _takes_two(fit) else given
    score = _guarded(name, "fit", lambda: fit(*arguments))
    if not callable(score):
        raise ScorerError(f"{name}: fit must return a function score(seen); got {got(score)}")
    task = Task(settings=config, federation=federation, split=split, whole=whole, protocol=protocol)
    ranker = TableScorer(table=partial(_scores_of, name, score, n_items, flat))
    return Plan(task=task, stages=tuple, ranker=lambda params: ranker)


def _scores_of(name: str, score: Score, n_items: int, flat: list[bool], devices: Clients) -> Scores:
    seen = likes_of(devices, n_items)
    own = seen.nonzero()
    scores = _checked(name, _guarded(name, "score", lambda: score(seen)), seen.shape)
    flat.extend(_are_flat(scores, own))
    return scores


def _guarded(name: str, what: str, call: Callable[[], Any]) -> Any:
    """Return the result of a user's function; raise its exceptions as `ScorerError`."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a Rust library is no `Exception`
        said = safe_text(" ".join(str(error).split()))
        kind = type(error).__name__
        raise ScorerError(f"{name}: {what} raised {kind}{said and f': {said}'}") from error


def _checked(name: str, found: Any, shape: tuple[int, int]) -> Scores:
    """Return the scores as an array of floats; raise if they have another form."""
    if sp.issparse(found):
        raise ScorerError(f"{name}: score must return a dense array; got a sparse one (.toarray())")
    try:
        scores = np.asarray(found)
    except ValueError as error:
        raise ScorerError(f"{name}: score must return one array; got rows of any length") from error
    if scores.shape != shape:
        shown = scores.shape or got(found)
        raise ScorerError(
            f"{name}: score must return an array of shape {shape}, (people, items); got {shown}"
        )
    if scores.dtype.kind not in "iufb":
        raise ScorerError(f"{name}: score must return numbers; got {scores.dtype}")
    scores = scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64)
    if wrong := int(np.isnan(scores).sum()):
        raise ScorerError(f"{name}: scores must be numbers; got {wrong} NaN of {scores.size}")
    return scores


def _are_flat(scores: Scores, own: tuple[npt.NDArray[np.signedinteger[Any]], ...]) -> list[bool]:
    """Return for each person whether all items have the same score, except her own items."""
    others = scores.copy()
    others[own] = np.inf
    low = others.min(axis=1)
    others[own] = -np.inf
    flat: list[bool] = (low >= others.max(axis=1)).tolist()
    return flat


def _takes_two(fit: Fit) -> bool:
    """Return whether a function has two or more parameters without a default."""
    try:
        parameters = inspect.signature(fit).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in kinds and p.default is p.empty]) > 1


def _name_of(fit: Fit) -> str:
    while isinstance(fit, partial):
        fit = fit.func
    found = getattr(fit, "__name__", type(fit).__name__)
    return "own" if found == "<lambda>" else found


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise SettingsError(f"`name` must be a text; got {name!r}")
    if name in recipe_names():
        raise SettingsError(
            f"`name` must not be that of a recipe, which is another row; got {name!r}"
        )


def _place(out: str | Path) -> Path:
    """Return the path of the figures; raise if the folder has any other files."""
    check_kind("out", out, (str, PathLike), "a path")
    path = Path(out)
    known = {records.SIMULATION}
    if path.exists() and not (path.is_dir() and {p.name for p in path.iterdir()} <= known):
        raise RunFolderError(f"{path} is in the way: choose another `out`")
    return records.RunFolder(path=path).evaluation_path
