"""The curious server: which items it reads off one contribution without noise.

No guarantee covers this: a server without secure sums gets each device's contribution as it is.
The figures say what trust in such a server means.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.attacks.readers import Items, LooksLiked, read, trained_reader
from privrec.core.contribution import Contribution, bounded, shapes_of
from privrec.core.phase import Phase, ServerState, Stage, Told
from privrec.core.round import Surroundings, cohort_draw, fastest, play_round
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation, chunks
from privrec.data.schema import Bag, Bags, Side
from privrec.errors import SettingsError
from privrec.models.api import ITEM_TABLE
from privrec.privacy.noise import seeded
from privrec.seeds import rng
from privrec.types import BoolArray, IntArray, Params

_MADE_UP = 24
"""How many people the server invents to learn how likes look. Chosen by hand."""
_FEWEST, _MOST = 5, 120
"""How many items an invented person has; at most a quarter of the catalogue."""
_LIKED = 2 / 3
"""The share of likes among them."""

Send = Callable[[Clients], Contribution]
"""One person's data -> what her device adds to the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How good named items are, over all people together; None if there are none to count.

    `precision` is the share of the named items that are right, `recall` the share of the right
    items that are named.
    """

    precision: float | None
    recall: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the server reads off the contributions of some people in one phase.

    `items` are those that a person has, `likes` those that she likes. `guessing` is the precision
    of naming as many of the most liked items instead of the likes that were read.
    """

    phase: str
    people: int
    items: Share
    likes: Share
    guessing: float | None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "guessing": {"precision": self.guessing}}


def read_off(
    prepared: PreparedRun, params: Params | None = None, people: int = 200, seed: int = 0
) -> list[View]:
    """Return the server's view of each phase, on a sample of the phase's people.

    The model is that of `params`, a finished run's, or else a fresh one. A phase of one round that
    comes before another is then played with seeded noise, because the next one asks about its
    result.
    """
    if people < 1:
        raise SettingsError(f"`people` must be >= 1; got {people}")
    views, before, stages = [], params, prepared.stages()
    for stage in stages:
        state = stage.start(before)
        if params is not None:
            known = {name: params.get(name, leaf) for name, leaf in state.params.items()}
            state = replace(state, params=known)
        if isinstance(stage, Phase) and len(stage.population):
            views.append(_view(prepared, stage, state, people=people, seed=seed))
        if params is None and stage is not stages[-1]:
            before = _after(stage, state, prepared.federation, seed).params
    return views


def grade(phase: str, found: Sequence[Items], truth: Sequence[Items], popular: IntArray) -> View:
    """Return how good readings are; `popular` has the items, the most liked first."""
    guesses = [popular[: len(one.likes)] for one in found]
    return View(
        phase=phase,
        people=len(found),
        items=_share([one.items for one in found], [one.items for one in truth]),
        likes=_share([one.likes for one in found], [one.likes for one in truth]),
        guessing=_share(guesses, [one.likes for one in truth]).precision,
    )


def _view(
    prepared: PreparedRun, stage: Phase, state: ServerState, *, people: int, seed: int
) -> View:
    federation, n_items = prepared.federation, prepared.federation.n_items
    told = {name: np.asarray(leaf) for name, leaf in stage.tell(state).items()}
    draw = rng(seed, stage.first, "curious server")
    who = draw.choice(stage.population, min(people, len(stage.population)), replace=False)
    send = _sender(stage, state, told, federation)
    looks_liked = _learned(send, federation.catalogue, draw)
    dislikes = federation.catalogue.has_dislikes and (
        getattr(prepared.config, "dislike_input", 0) > 0
    )
    found = [
        read(
            send(federation.take(who[k : k + 1])),
            told,
            n_items,
            dislikes=dislikes,
            looks_liked=looks_liked,
        )
        for k in range(len(who))
    ]
    # The truth is looked up only now, when everything has been read.
    truth = [items_of(federation.take(who[k : k + 1])) for k in range(len(who))]
    return grade(stage.name, found, truth, _popular(federation, stage.population))


def items_of(person: Clients) -> Items:
    """Return the items that a person has and those that she likes."""
    owned, liked = person.item, person.item[person.liked]
    return Items(np.unique(owned).astype(np.int64), np.unique(liked).astype(np.int64))


def _sender(stage: Phase, state: ServerState, told: Told, federation: Federation) -> Send:
    """Return what makes a device's contribution and bounds it, as the round does."""
    blank = stage.device.contribute(told, nobody(federation.schema, 1), stage.first)
    expected = shapes_of(blank)
    if expected is None:
        raise ValueError(f"{stage.name}: `contribute` returns an unsound contribution")

    def send(person: Clients) -> Contribution:
        made = stage.device.contribute(told, person, stage.first)
        norm = stage.aggregator.norm
        return bounded(made, state.clip_norm, norm, expected=expected).contribution

    return send


def _after(stage: Stage, state: ServerState, federation: Federation, seed: int) -> ServerState:
    """Return the state after a phase of one round; any other stage is not played."""
    if not isinstance(stage, Phase) or stage.rounds > 1:
        return state
    around = Surroundings(
        take=federation.take,
        run=fastest,
        draw=cohort_draw(seed, secret=False),
        publish=lambda state, play: play(seeded(rng(seed, state.round_index, "noise"))),
    )
    return play_round(stage, state, around)[0]


def _learned(send: Send, catalogue: Catalogue, draw: np.random.Generator) -> LooksLiked:
    """Return a reader of item rows. The server learns it from invented people.

    A device also moves the rows of items that its person never saw, drawn as negatives. The server
    knows the program of the device, so it can see how likes differ from the others.
    """
    updates, liked = [], []
    for _ in range(_MADE_UP):
        person = made_up(catalogue, draw)
        rows = send(person).rows.get(ITEM_TABLE)
        if rows is None:
            break
        updates.append(np.asarray(rows.values, np.float64))
        liked.append(np.isin(rows.ids, person.item[person.liked]))
    return trained_reader(updates, liked) if updates else _all_of_them


def made_up(catalogue: Catalogue, draw: np.random.Generator) -> Clients:
    """Return an invented person with random items, features and contexts."""
    most = max(min(_MOST, catalogue.n_items // 4), _FEWEST + 1)
    size = min(int(draw.integers(_FEWEST, most)), catalogue.n_items)
    liked = draw.random(size) < _LIKED

    def bags(side: Side, rows: int) -> Bags:
        return {
            one.table: Bag(
                draw.integers(max(one.rows, 1), size=(rows, 1)).astype(np.int32),
                np.ones((rows, 1), np.float32),
            )
            for one in catalogue.schema.of(side)
        }

    return Clients(
        ids=draw.integers(2**62, size=1),
        offsets=np.array([0, size]),
        item=draw.choice(catalogue.n_items, size, replace=False).astype(np.int32),
        value=liked.astype(np.float32),
        liked=liked,
        time=np.arange(size, dtype=np.float64),
        features=bags("user", 1),
        context=bags("context", size),
    )


def _popular(federation: Federation, population: IntArray) -> IntArray:
    """Return all items, those that most people like first."""
    counts = np.zeros(federation.n_items, np.int64)
    for part in chunks(population):
        people = federation.take(part)
        counts += np.bincount(people.item[people.liked], minlength=federation.n_items)
    return np.argsort(-counts, kind="stable")


def _all_of_them(values: Any) -> BoolArray:
    return np.ones(len(values), np.bool_)


def _share(named: Sequence[IntArray], true: Sequence[IntArray]) -> Share:
    right = sum(len(np.intersect1d(a, b)) for a, b in zip(named, true, strict=True))
    count, wanted = sum(map(len, named)), sum(map(len, true))
    return Share(
        precision=right / count if count else None, recall=right / wanted if wanted else None
    )
