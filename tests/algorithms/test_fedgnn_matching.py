"""FedGNN's matching: what the matching server can know, what devices get, and what is written."""

import hashlib
import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privrec
from loopback import Loopback
from privrec.algorithms.fedgnn.graph import FedGnnSettings, items_of, marks_of, pack
from privrec.algorithms.fedgnn.matching import (
    COUNTS,
    KEY,
    MARKS,
    TOKENS,
    VECTORS,
    Offer,
    directory_of,
    item_token,
    match,
    neighbours_of,
    table_of,
    trained_of,
)
from privrec.algorithms.fedgnn.recipe import offers_of
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Exchange, Phase, silent
from privrec.data.federation import Federation
from privrec.errors import FederationError
from privrec.protocol.terms import phases_of
from privrec.runs import loop
from privrec.seeds import rng
from privrec.testing import small
from stops import Stopped
from tiny import DATA, round_of

KEYS = (bytes(range(32)), bytes(range(1, 33)))


@pytest.fixture(scope="module")
def data() -> Federation:
    return privrec.load(DATA)


@pytest.fixture(scope="module")
def run(data: Federation, tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    place = tmp_path_factory.mktemp("fedgnn") / "run"
    return privrec.train("fedgnn", data, out=place, **small("fedgnn", rounds=4))


def sent_by(data: Federation, secret: bytes) -> list[Offer]:
    settings = configure("fedgnn", data.name, small("fedgnn"))
    prepared = prepare(settings, data)
    params = trained_of(prepared.stages()[0].start(None).params)
    return list(offers_of(data.take(prepared.task.split.train), params, secret, settings))


def test_tokens_follow_the_item_and_the_key() -> None:
    assert item_token(KEYS[0], 7) == item_token(KEYS[0], 7)
    every = {item_token(key, item) for key in KEYS for item in range(500)}
    assert len(every) == 1000
    assert {len(token) for token in every} == {16}
    # The closed form of RFC 2104 with SHA-256.
    inner, outer = (bytes(b ^ pad for b in KEYS[0].ljust(64, b"\0")) for pad in (0x36, 0x5C))
    digest = hashlib.sha256(inner + (7).to_bytes(8, "big")).digest()
    assert item_token(KEYS[0], 7) == hashlib.sha256(outer + digest).digest()[:16]


@pytest.mark.slow
def test_who_lacks_the_key_cannot_try_all_items(data: Federation) -> None:
    """The matching server knows how tokens are made, and all items: without the key it is lost."""
    tokens = {token for offer in sent_by(data, KEYS[0]) for token in offer.tokens}
    assert tokens
    for guess in (KEYS[1], b"", bytes(32)):
        assert not tokens & {item_token(guess, item) for item in range(data.n_items)}
    for name in ("sha256", "md5", "sha1"):
        for text in (lambda k: k.to_bytes(8, "big"), lambda k: str(k).encode()):
            plain = {hashlib.new(name, text(k)).digest()[:16] for k in range(data.n_items)}
            assert not tokens & plain
    # With the key all of them are found: the test above looks at the right thing.
    assert tokens <= {item_token(KEYS[0], item) for item in range(data.n_items)}


def test_the_matching_server_is_given_tokens_and_vectors_alone(data: Federation) -> None:
    assert Offer.__annotations__.keys() == {"tokens", "vector", "marks"}
    assert list(inspect.signature(match).parameters) == ["offers", "most", "draw"]
    for offer in sent_by(data, KEYS[0]):
        assert all(type(token) is bytes for token in offer.tokens)
        assert offer.vector.dtype == np.float32
        assert offer.vector.shape == (4,)
    source = inspect.getsource(match)
    assert "item" not in source.split('"""')[2]
    assert "key" not in source.split('"""')[2]


def test_it_gives_some_of_those_who_sent_the_token_each_with_the_same_chance() -> None:
    offers = [
        Offer((b"a", b"b") if k < 6 else (b"a",), np.full(2, k, "f"), (k, k) if k < 6 else (k,))
        for k in range(12)
    ]
    times = np.zeros(12)
    for trial in range(600):
        found = match(offers, 3, np.random.default_rng(trial))
        assert {len(found[b"a"]), len(found[b"b"])} == {3}
        marks = [one.mark for one in found[b"a"]]
        assert len(set(marks)) == 3
        assert all(one.mark < 6 for one in found[b"b"])
        assert all((one.vector == one.mark).all() for one in found[b"a"])
        times[marks] += 1
    assert np.abs(times - 150).max() < 5 * np.sqrt(600 * 0.25 * 0.75)
    assert len(match(offers[:2], 3, rng(0, 0, "x"))[b"a"]) == 2


def test_a_device_gets_its_items_neighbours_and_never_itself(data: Federation) -> None:
    offers = sent_by(data, KEYS[0])
    n_items, most = data.n_items, 50  # More than there are people: everybody comes back.
    matched = match(offers, most, rng(0, 0, "matching"))
    table = table_of(matched, KEYS[0], n_items, most, 4)
    directory = directory_of(table)
    assert directory is not None
    people = data.take(
        prepare(configure("fedgnn", data.name, small("fedgnn")), data).task.split.train
    )
    persons = [items_of(people, k) for k in range(len(people))]
    by_mark = {mark: offer.vector for offer in offers for mark in offer.marks}
    # Marks differ from item to item, so they do not join one person's items.
    assert len(by_mark) == sum(len(offer.tokens) for offer in offers)
    for person in persons[:5]:
        likes = person.ids[person.liked]
        vectors, known = neighbours_of(directory, likes, marks_of(0, person.id, likes))
        for place, item in enumerate(likes):
            wanted = {
                int(marks_of(0, other.id, np.array([item]))[0])
                for other in persons
                if other.id != person.id and item in other.ids[other.liked]
            }
            assert known[place].sum() == len(wanted)
            found = {tuple(vector.tolist()) for vector in vectors[place][known[place]]}
            assert found == {tuple(by_mark[other].tolist()) for other in wanted}
            assert not vectors[place][~known[place]].any()


def test_unknown_items_have_no_neighbours() -> None:
    matched = match([Offer((item_token(KEYS[0], 3),), np.ones(2, "f"), (9,))], 2, rng(0, 0, "x"))
    directory = directory_of(table_of(matched, KEYS[0], 5, 2, 2))
    assert directory is not None
    vectors, known = neighbours_of(directory, np.array([0, 3, 4]), np.array([1, 1, 1]))
    np.testing.assert_array_equal(known, [[False, False], [True, False], [False, False]])
    assert vectors.shape == (3, 2, 2)
    assert vectors.sum() == 2
    assert directory_of({}) is None


@pytest.mark.slow
def test_only_numbers_of_32_bits_are_told_in_a_size_that_says_nothing(run: privrec.Run) -> None:
    params = run.model().params
    wanted = {KEY: "uint32", TOKENS: "uint32", VECTORS: "float32", MARKS: "uint32", COUNTS: "int32"}
    assert {name: str(params[name].dtype) for name in wanted} == wanted
    n_items = run.catalogue.n_items
    assert params[VECTORS].shape == (n_items, 2, 4)
    assert params[TOKENS].shape == (n_items, 4)
    assert params[COUNTS].max() == 2
    used = params[TOKENS][params[COUNTS] > 0]
    rows = [row.tobytes() for row in used]
    assert rows == sorted(rows)  # Their order says nothing about items.


def test_the_ledger_says_what_was_no_sum_and_what_the_noise_is_worth(run: privrec.Run) -> None:
    lines = [json.loads(line) for line in run.folder.ledger_path.read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["warm-up"] * 2 + ["matching"] + ["train"] * 2
    exchange = lines.pop(2)
    assert exchange["exchange"].startswith("matching: not a sum")
    assert "local_noise" not in exchange
    for line in [*lines, exchange]:
        assert (line["mechanism"], line["noise"]) == ("none", "none")
    for line in lines:
        assert "exchange" not in line
        assert line["local_noise"]["scale"] == run.config.model_dump()["local_noise"]
        assert line["local_noise"]["guarantee"].startswith("none for a person")
    assert run.privacy().epsilon is None
    assert "matching server sees keyed hashes" in run.privacy().statement


def test_a_run_that_is_stopped_after_the_matching_goes_on_to_the_same_bytes(
    run: privrec.Run, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    for stage in ("rounds for matching", "rounds"):

        def stop(what: str, done: int, total: int, stage: str = stage) -> None:
            if what == stage and done == 1:
                raise Stopped

        place = tmp_path / stage
        with pytest.raises(Stopped):
            privrec.train("fedgnn", data, out=place, on_progress=stop, **small("fedgnn", rounds=4))
        again = privrec.train("fedgnn", data, out=place, resume=True)
        assert again.folder.params_path.read_bytes() == run.folder.params_path.read_bytes()
        assert again.folder.ledger_path.read_bytes() == run.folder.ledger_path.read_bytes()


def test_expanded_graphs_have_neighbours_and_the_matching_reads_training_people_alone(
    data: Federation,
) -> None:
    asked: list[Any] = []

    def take(positions: Any) -> Any:
        asked.append(positions)
        return data.take(positions)

    watched = replace(data, take=take)
    prepared = prepare(configure("fedgnn", data.name, small("fedgnn")), watched)
    first, exchange, last = prepared.stages()
    assert isinstance(exchange, Exchange)
    assert isinstance(last, Phase)
    state, _ = round_of(data, first, first.start(None))
    before = exchange.start(state.params)
    asked.clear()
    after, report = exchange.play(before, silent)
    assert sorted(np.concatenate(asked).tolist()) == sorted(prepared.task.split.train.tolist())
    assert (after.round_index, report.clients) == (2, len(prepared.task.split.train))
    told = last.tell(last.start(after.params))
    for name, leaf in trained_of(before.params).items():
        np.testing.assert_array_equal(after.params[name], leaf)
    assert isinstance(prepared.task.settings, FedGnnSettings)
    people = data.take(prepared.task.split.train)
    (client, *_) = pack(prepared.task.settings, data.n_items, told, people, 2)
    assert client.graph.known.any()
    assert not client.graph.known[~client.graph.real].any()
    dislikes = client.graph.real & ~client.graph.liked
    assert not client.graph.known[dislikes].any()  # A device asks only for what it likes.


def test_a_federation_refuses_what_is_no_sum(data: Federation, tmp_path: Path) -> None:
    prepared = prepare(configure("fedgnn", data.name, small("fedgnn")), data)
    with pytest.raises(FederationError, match="fedgnn has an exchange that is not a sum"):
        phases_of(Loopback(prepared, tmp_path, secure_sum=False).run())


def test_a_newcomer_gets_neighbours_when_she_ranks(run: privrec.Run) -> None:
    """Neighbours change what a device ranks; without the table it would rank otherwise."""
    likes = [run.catalogue.item_ids[k] for k in range(3)]
    model = run.model()
    with_them = [one.score for one in model.device(likes=likes).recommend(5)]
    assert len(with_them) == 5
    empty = {name: np.zeros_like(model.params[name]) for name in (COUNTS,)}
    bare = replace(model, params={**model.params, **empty})
    assert [one.score for one in bare.device(likes=likes).recommend(5)] != with_them
