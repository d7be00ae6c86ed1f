"""The part for phones: reads a released model and ranks items for one person by her own data.

A model of PrivRec+ needs only numpy here; other models need JAX.
"""

import email.utils
import http.client
import importlib
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.scoring import (
    LIKES,
    check_tower,
    dense_rows,
    layout_in,
    recency_of,
    row_scorer,
)
from privrec.core.scorer import Scorer, TableScorer, moments, top_items
from privrec.data.catalogue import Catalogue, from_json
from privrec.data.clients import Clients
from privrec.data.schema import check_names, encode_one, is_missing
from privrec.data.text import short, value_text
from privrec.errors import (
    DataError,
    RunFolderError,
    ScorerError,
    SettingsError,
    check_kind,
    got,
    nearest,
)
from privrec.types import F32, F64

if TYPE_CHECKING:
    from privrec.data.frames import Frame

FORMAT, COMPACT = 1, 2
"""The formats of an export: 32-bit arrays, and 8-bit rows with a scale each."""
_ROOM = 2**24
_GROWTH = 20
"""An export may unpack to at most `_GROWTH` times its size plus `_ROOM` bytes. Malicious archives
exceed this limit; exports stay below it. Chosen by hand."""
_TOO_LARGE = "it would unpack to far more than an export has"
_MOST_TEXT = 2**26
"""The most bytes of a JSON file in an export, because Python needs up to 20 times as much memory to
read it. This is enough for about 800,000 items. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended item.

    `score` orders the items of one person and has no unit. `better_than` is the share of the other
    items that score lower, among items that she has not rated; the best item has 1.
    """

    item: str
    title: str
    score: float
    better_than: float

    def __repr__(self) -> str:
        item, title = short(self.item), short(self.title, 120)
        return f"Recommendation(item={item!r}, title={title!r}, score={self.score:.4g})"


class Recommendations(list[Recommendation]):
    """A list of recommendations, best first, which can be converted to a frame."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns rank (from 1), item, title, score and better_than."""
        names = ("item", "title", "score", "better_than")
        columns = {name: [getattr(entry, name) for entry in self] for name in names}
        return {"rank": [*range(1, len(self) + 1)], **columns}

    def frame(self) -> "Frame":
        """Return a polars frame with these columns."""
        # Imported here, because a phone may not have polars.
        from privrec.data.frames import new_frame

        return new_frame(self.columns(), (int, str, str, float, float))

    def to_pandas(self) -> Any:
        """Return a pandas frame with these columns; pandas must be installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise SettingsError("`to_pandas` needs pandas; `frame` needs only polars") from error
        return pandas.DataFrame(self.columns())

    def __repr__(self) -> str:
        lines = [f"{rank:>3}  {short(entry.title, 50)}" for rank, entry in enumerate(self[:10], 1)]
        more = [f"… and {len(self) - 10:,} more"] if len(self) > 10 else []
        what = "recommendation" if len(self) == 1 else "recommendations"
        return "\n".join([f"{len(self):,} {what}", *lines, *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One person's device: it adapts the model to her data and ranks items; it sends nothing."""

    catalogue: Catalogue
    scorer: Scorer
    data: Clients
    moment: Clients
    features: Mapping[str, object] = field(default_factory=dict)
    """Her own features as they were given, without the context of the moment."""

    def __repr__(self) -> str:
        likes = int(self.data.liked.sum())
        others = len(self.data.item) - likes
        about = f"{likes:,} likes, {others:,} dislikes, of {self.catalogue.n_items:,} items"
        return f"Device({short(self.catalogue.name)!r}: {about})"

    def recommend(self, top: int = 10) -> Recommendations:
        """Return the `top` items among those that she has not rated, best first."""
        check_kind("top", top, (int, np.integer), "a whole number")
        if top < 1:
            raise SettingsError(f"`top` must be >= 1; got {top}")
        scores = self._scores()
        scores[self.data.item] = -np.inf
        (order,), (best,) = top_items(scores[None, :], int(top))
        return Recommendations(
            Recommendation(
                item=self.catalogue.item_ids[k],
                title=self.catalogue.titles[k],
                score=float(score),
                better_than=_share_below(scores, score),
            )
            for k, score in zip(order, best, strict=True)
            if score > -np.inf
        )

    def save(self) -> str:
        """Return her items and features as text, to be kept or moved to another device.

        `Model.restore` reads it, and so does the JavaScript package. The context of the moment is
        not in it.
        """
        ids, item, liked = self.catalogue.item_ids, self.data.item, self.data.liked
        features = {name: _plain(value) for name, value in self.features.items()}
        return json.dumps(
            {
                "is": _STATE,
                "format": 1,
                "likes": [ids[k] for k in item[liked]],
                "dislikes": [ids[k] for k in item[~liked]],
                "features": {name: value for name, value in features.items() if value is not None},
            },
            ensure_ascii=False,
        )

    @np.errstate(over="ignore", invalid="ignore")
    def _scores(self) -> F64:
        """Return the scores of all items, (n_items,); raise if one is not finite."""
        try:
            scores = np.array(next(iter(self.scorer(self.data, self.moment)))[0], np.float64)
        except np.linalg.LinAlgError:
            scores = np.full(1, np.nan)
        if not np.isfinite(scores).all():
            raise ScorerError(
                "the model's scores are not numbers: its training diverged, or it is damaged"
            )
        return scores


_STATE = "privrec-person"
_LONGEST_STATE = 2**24
"""The most characters of a saved state. Chosen by hand."""


def _plain(value: object) -> object:
    """Return the value of a feature as JSON has it; None if it is missing."""
    if isinstance(value, list | tuple | np.ndarray):
        return [value_text(entry) for entry in value if not is_missing(entry)]
    if is_missing(value):
        return None
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return float(value) if is_number else value_text(value)  # type: ignore[arg-type]


def _read_state(text: str) -> dict[str, Any]:
    """Return a saved state; raise unless it is one."""
    try:
        document = json.loads(text) if len(text) <= _LONGEST_STATE else None
    except (ValueError, RecursionError):
        document = None
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    lists = [found.get("likes"), found.get("dislikes")]
    items = [name for names in lists if isinstance(names, list) for name in names]
    whole = found.get("is") == _STATE and all(isinstance(names, list) for names in lists)
    whole = whole and isinstance(found.get("features"), dict)
    whole = whole and all(isinstance(name, str) for name in items)
    if not whole or len({*items}) < len(items):
        raise DataError("this is not the saved state of a device")
    if found.get("format") != 1:
        raise DataError(f"this state has format {got(found.get('format'))}; format 1 is read")
    return found


def _share_below(scores: F64, score: float) -> float:
    """Return the share of the other items that score lower; items with score -inf do not count.

    >>> _share_below(np.array([0.9, 0.5, 0.5, 0.1, -np.inf]), 0.5)
    0.3333333333333333
    """
    others = int((scores > -np.inf).sum()) - 1
    below = int(((scores > -np.inf) & (scores < score)).sum())
    return below / others if others else 1.0


@np.errstate(over="ignore")
def new_device(
    catalogue: Catalogue,
    scorer: Scorer,
    *,
    likes: Sequence[str | int] = (),
    dislikes: Sequence[str | int] = (),
    features: Mapping[str, object] | None = None,
) -> Device:
    """Return the device of a newcomer: a person who is not in the run's data.

    `likes` and `dislikes` are ids or titles of items. `features` has values of user and context
    features by name.
    """
    likes, dislikes = _named("likes", likes), _named("dislikes", dislikes)
    check_kind("features", features or {}, Mapping, "a mapping from names to values")
    item = [find_item(catalogue, name) for name in [*likes, *dislikes]]
    if len(set(item)) < len(item):
        twice = next(k for k in item if item.count(k) > 1)
        raise DataError(f"{catalogue.titles[twice]!r} was given more than once")
    liked = np.arange(len(item)) < len(likes)
    given = dict(features or {})
    check_names(catalogue.schema, given)
    _check_lists(catalogue, given)
    context_names = {feature.name for feature in catalogue.schema.of("context")}
    now = {name: given.pop(name) for name in list(given) if name in context_names}
    context = encode_one(catalogue.schema, "context", now)
    data = Clients(
        ids=np.zeros(1, np.int64),
        offsets=np.array([0, len(item)]),
        item=np.array(item, np.int32),
        value=np.where(liked, catalogue.positive_above + 1, catalogue.positive_above).astype(
            np.float32
        ),
        liked=liked,
        time=np.arange(len(item), dtype=np.float64),
        features=encode_one(catalogue.schema, "user", given),
        context={name: bag.take(np.zeros(len(item), np.int64)) for name, bag in context.items()},
    )
    return Device(
        catalogue=catalogue,
        scorer=scorer,
        data=data,
        moment=moments(data, context),
        features=given,
    )


def _check_lists(catalogue: Catalogue, given: Mapping[str, object]) -> None:
    """Raise if a feature of one value got a list."""
    for feature in (*catalogue.schema.of("user"), *catalogue.schema.of("context")):
        if feature.kind != "multi" and isinstance(given.get(feature.name), list | tuple):
            raise DataError(f"{feature.name!r} takes one value; got {given[feature.name]!r}")


def _named(what: str, items: object) -> list[str]:
    """Return ids or titles of items as text; an id may be given as a whole number."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise SettingsError(f"`{what}` must be a list of items; got {got(items)}")
    names = list(items)
    for name in names:
        check_kind(what, name, (str, int, np.integer), "ids or titles of items")
    return [str(name) for name in names]


def find_item(catalogue: Catalogue, name: str) -> int:
    """Return the position of the item with this id or title; a title's case does not matter."""
    ids, titles = catalogue.item_ids, catalogue.titles
    if name in ids:
        return ids.index(name)
    for spelt in (str, str.casefold):
        named = [k for k, title in enumerate(titles) if spelt(title) == spelt(name)]
        if len(named) > 1:
            several = ", ".join(ids[k] for k in named[:5])
            raise DataError(f"{len(named)} items are called {name!r}: give an id, of {several}")
        if named:
            return named[0]
    raise DataError(f"unknown item {name!r}{nearest(name, catalogue.titles)}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A released model: its parameters, catalogue, settings and privacy guarantee."""

    params: Mapping[str, Any]
    catalogue: Catalogue
    settings: Mapping[str, Any]
    privacy: Mapping[str, Any]

    def __repr__(self) -> str:
        numbers = sum(int(np.size(array)) for array in self.params.values())
        about = f"{short(self.settings.get('recipe'))} on {short(self.catalogue.name)}"
        return (
            f"Model({about}: {self.catalogue.n_items:,} items, {numbers:,} parameters)\n"
            f"  {short(self.privacy.get('statement'), 500)}"
        )

    def device(
        self,
        *,
        likes: Sequence[str | int] = (),
        dislikes: Sequence[str | int] = (),
        features: Mapping[str, object] | None = None,
    ) -> Device:
        """Return a newcomer's device, with this model and her data."""
        return new_device(
            self.catalogue, self._scorer(), likes=likes, dislikes=dislikes, features=features
        )

    def restore(self, text: str) -> Device:
        """Return the device of a person whose state was saved, in Python or in JavaScript.

        What this model does not know is left out: items, and values of features.
        """
        check_kind("text", text, str, "what `save` returns")
        state, known = _read_state(text), {*self.catalogue.item_ids}
        features = {}
        for name, value in state["features"].items():
            with suppress(DataError):
                _check_lists(self.catalogue, {name: value})
                encode_one(self.catalogue.schema, "user", {name: value})
                features[name] = value
        likes, dislikes = (
            [name for name in state[key] if name in known] for key in ("likes", "dislikes")
        )
        return self.device(likes=likes, dislikes=dislikes, features=features)

    def recommend_many(
        self, likes: Mapping[str, Sequence[str]], top: int = 20
    ) -> dict[str, Recommendations]:
        """Return the lists of newcomers by name, from the items that each of them likes."""
        check_kind("likes", likes, Mapping, "lists of items by the names of people")
        scorer = self._scorer()
        return {
            name: new_device(self.catalogue, scorer, likes=items).recommend(top)
            for name, items in likes.items()
        }

    @np.errstate(over="ignore", invalid="ignore")
    def _scorer(self) -> Scorer:
        if LIKES in self.params:
            layout = layout_in(self.catalogue.schema, self.catalogue.n_items, set(self.params))
            check_tower(self.params, layout)
            score, recency = row_scorer(self.params, layout), recency_of(self.params)
            return TableScorer(table=lambda people: score(dense_rows(people, layout, recency)))
        # Imported by name, because a phone may lack the libraries that training code imports.
        recipes = importlib.import_module("privrec.algorithms.recipes")
        plan = recipes.plan_on_device(recipes.settings_of(self.settings), self.catalogue)
        scorer: Scorer = plan.ranker(self.params)
        return scorer


def open_model(path: str | Path) -> Model:
    """Return the model in a file that `privrec export` wrote."""
    check_kind("path", path, (str, os.PathLike), "a file")
    try:
        with Path(path).open("rb") as file:
            return read_model(file, str(path))
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}") from error


def read_model(file: IO[bytes], where: str) -> Model:
    """Return the model in an open export; `where` is the name of the export in errors."""
    try:
        members, left = _members(file)
        about = json.loads(members["model.json"])
        catalogue = from_json(members["catalogue.json"], f"{where}: catalogue.json")
        version = about.get("format") if isinstance(about, dict) else about
        params = _arrays(members, left, compact=version == COMPACT)
    except _WRONG as error:
        raise RunFolderError(f"{where} is not an exported model ({error})") from error
    if not isinstance(about, dict) or version not in (FORMAT, COMPACT):
        raise RunFolderError(
            f"{where} is an export of format {got(version)}; this privrec reads formats {FORMAT}"
            f" and {COMPACT}"
        )
    settings, privacy = about.get("settings"), about.get("privacy")
    if not isinstance(settings, dict) or not isinstance(privacy, dict) or not params:
        raise RunFolderError(f"{where} is not a whole export: it lacks settings or parameters")
    return Model(params=params, catalogue=catalogue, settings=settings, privacy=privacy)


def refresh(address: str, path: str | Path, *, authority: str | Path | None = None) -> bool:
    """Return whether the web address had a newer model, which then has replaced the file `path`.

    The request has the time of the present file and nothing about the person. The file is replaced
    only by a model that can rank. `authority` is a certificate file, for a server whose certificate
    is not from a public authority.
    """
    check_kind("address", address, str, "a web address")
    check_kind("path", path, (str, os.PathLike), "a file")
    where = Path(path)
    try:
        parts = urllib.parse.urlsplit(address)
        secure = ssl.create_default_context(cafile=authority) if parts.scheme == "https" else None
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot fetch {address}: {error}") from error
    local = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and local):
        raise SettingsError(f"a model's address must begin with https://; got {address!r}")
    request = urllib.request.Request(address)  # noqa: S310 (the scheme was checked)
    if where.is_file():
        made = email.utils.formatdate(where.stat().st_mtime, usegmt=True)
        request.add_header("If-Modified-Since", made)
    fresh = where.with_name(where.name + ".tmp")
    try:
        with urllib.request.urlopen(request, timeout=60, context=secure) as answer:  # noqa: S310
            content, made = answer.read(_LARGEST + 1), answer.headers.get("Last-Modified")
        if len(content) > _LARGEST:
            raise RunFolderError(f"the model at {address} has more than {_LARGEST:,} bytes")
        fresh.write_bytes(content)
        open_model(fresh).device()  # Raises if it cannot rank.
        if made is not None:
            time = email.utils.parsedate_to_datetime(made).timestamp()
            os.utime(fresh, (time, time))
        fresh.replace(where)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.NOT_MODIFIED:
            return False
        raise RunFolderError(f"cannot fetch {address}: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise RunFolderError(f"cannot fetch {address}: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return True


_LARGEST = 2**29
"""The most bytes of a fetched model. Chosen by hand."""
_WRONG = (
    *(zipfile.BadZipFile, zlib.error, LookupError, ValueError, TypeError),
    *(ArithmeticError, EOFError, RuntimeError, MemoryError),
)
"""The exceptions of reading a file that is not an export."""
_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00(..)(\{'descr': '(<f4|\|i1|<u2|<u4)', 'fortran_order': False, 'shape': "
    rb"\(([0-9, ]{0,99})\), \} *\n)",
    re.DOTALL,
)
"""The header that `np.save` writes for an array of these numbers. Other headers are refused: numpy
would read them with Python's parser, or take memory before it looks at the size of the file."""


def _arrays(members: Mapping[str, bytes], left: int, *, compact: bool) -> dict[str, F32]:
    """Return the parameters of an export, by name; `left` is the memory that they may take more."""
    params: dict[str, F32] = {}
    for member, content in members.items():
        if not member.startswith("params/"):
            continue
        name = member.removeprefix("params/").removesuffix(".npy")
        array = _array(content, compact=compact)
        left -= 4 * array.size - array.nbytes  # 8 and 16 bits become 32.
        if left < 0:
            raise ValueError(_TOO_LARGE)
        if array.dtype == np.int8:
            scale = _array(members[f"scales/{name}.npy"], compact=False)
            if array.ndim != 2 or scale.shape != array.shape[:1]:
                raise ValueError(f"{name} has not one scale for each row")
            params[name] = array * scale[:, None]
        else:
            params[name] = array.astype(np.float32, copy=False)
    return params


def _array(content: bytes, *, compact: bool) -> npt.NDArray[Any]:
    head = _HEAD.match(content)
    if head is None or int.from_bytes(head[1], "little") != len(head[2]):
        raise ValueError("parameters must be 32-bit numbers, as numpy writes them")
    if head[3] != b"<f4" and not compact:
        raise ValueError("parameters must be 32-bit numbers, as numpy writes them")
    shape = [int(size) for size in head[4].split(b",") if size.strip()]
    array = np.frombuffer(content, head[3].decode(), offset=head.end()).reshape(shape)
    if not np.isfinite(array).all():
        raise ValueError("parameters must be finite numbers")
    return array


def _members(file: IO[bytes]) -> tuple[dict[str, bytes], int]:
    """Return the files in an archive, and how many bytes of the limit they leave.

    Raise if they unpack to more than the limit.
    """
    left = _ROOM + _GROWTH * file.seek(0, os.SEEK_END)
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename
            # Other methods unpack a whole block at once, however large it is.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"{name} is compressed in another way")
            if name in members:
                raise zipfile.BadZipFile(f"it has {name} more than once")
            most = min(left, _MOST_TEXT) if name.endswith(".json") else left
            with archive.open(member) as stream:
                members[name] = stream.read(most + 1)
            if len(members[name]) > most:
                raise zipfile.BadZipFile(_TOO_LARGE)
            left -= len(members[name])
    return members, left
