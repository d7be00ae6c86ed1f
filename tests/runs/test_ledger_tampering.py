"""A ledger that was changed, cut or combined from others is refused, with the line number."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import privrec
from privrec.errors import RunFolderError
from privrec.runs.folder import RunFolder
from privrec.runs.ledger import (
    _chain,
    append_release,
    read_ledger,
    read_ledger_file,
    start_ledger,
)
from tiny import DATA, MODEL

ROUNDS = 5
TINY = {**MODEL, "rounds": ROUNDS, "validate_every": 0, "delta": 1e-3, "epsilon": 5.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> privrec.Run:
    return privrec.train(
        "dp-privrec-one", DATA, out=tmp_path_factory.mktemp("ledger") / "run", **TINY
    )


@pytest.fixture
def ledger(run: privrec.Run) -> Any:
    """The file, which a test may change."""
    path = run.folder.ledger_path
    whole = path.read_bytes()
    yield path
    path.write_bytes(whole)


def refusal(run: privrec.Run) -> str:
    """Return the error that all commands give instead of the cost of the run."""
    reasons = set()
    for ask in (run.privacy, run.evaluate, run.model):
        with pytest.raises(RunFolderError) as caught:
            ask()
        reasons.add(str(caught.value))
    (reason,) = reasons
    assert str(run.folder.ledger_path) in reason
    return reason


@pytest.mark.slow
def test_a_release_that_is_missing_is_noticed(run: privrec.Run, ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    for place in range(ROUNDS - 1):
        ledger.write_bytes(b"".join(lines[:place] + lines[place + 1 :]))
        assert f"damaged at line {place + 1}: it or a line before it was changed" in refusal(run)
    ledger.write_bytes(b"".join(lines[:-1]))
    assert f"lacks the release of round {ROUNDS - 1}, which was played" in refusal(run)
    ledger.unlink()
    assert "lacks the release of round 0, which was played" in refusal(run)


def test_lines_in_another_order_or_twice_are_noticed(run: privrec.Run, ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    assert "damaged at line 1: " in refusal(run)
    ledger.write_bytes(b"".join([*lines[:3], lines[2], *lines[3:]]))
    assert "damaged at line 4: " in refusal(run)


@pytest.mark.parametrize("line", [b"5", b"[]", b"{}", b'{"round": 12}', b'{"round" 12}', b"\xff"])
def test_a_line_that_is_none_is_noticed(run: privrec.Run, ledger: Path, line: bytes) -> None:
    ledger.write_bytes(ledger.read_bytes() + line + b"\n")
    assert f"damaged at line {ROUNDS + 1}: " in refusal(run)


def test_a_line_without_a_part_is_noticed(run: privrec.Run, ledger: Path) -> None:
    whole = ledger.read_bytes()
    for name in json.loads(whole.splitlines()[0]):
        ledger.write_bytes(whole.replace(f'"{name}"'.encode(), b'"else"'))
        assert "damaged at line 1: " in refusal(run), name
    ledger.write_bytes(whole.replace(b'"mechanism"', b'"mechanics"'))
    assert "it has no 'mechanism'" in refusal(run)
    ledger.write_bytes(whole.replace(b'"users": 4', b'"users": -4'))
    assert "it names no release (`cohort` must be <= -4" in refusal(run)


CHANGES: dict[str, Any] = {
    "round": 7,
    "stage": "items",
    "people": "volunteers",
    "population": "of others",
    "noise": "seeded",
    "mechanism": "laplace",
    "sampling": {"law": "poisson", "users": 4300, "cohort": 8},
    "noise_multiplier": 9.0,
    "quantile_multiplier": 9.0,
    "adjacency": "replace one person",
    "clip_norm": 0.5,
    "noise_scale": 9.0,
    "numbers": 9,
    "published": "another hash",
    "chain": "another hash",
}


@pytest.mark.parametrize("place", [0, 2, ROUNDS - 1])
def test_whatever_is_changed_in_a_line_is_noticed(
    run: privrec.Run, ledger: Path, place: int
) -> None:
    lines = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    assert set(lines[place]) == set(CHANGES)
    for name, value in CHANGES.items():
        assert lines[place][name] != value
        changed = {**lines[place], name: value}
        made = [*lines[:place], changed, *lines[place + 1 :]]
        ledger.write_text("".join(json.dumps(line) + "\n" for line in made))
        assert f"damaged at line {place + 1}: " in refusal(run), name
    noise = lines[place]["noise_multiplier"] * 2
    scale = lines[place]["noise_scale"] * 2
    changed = {**lines[place], "noise_multiplier": noise, "noise_scale": scale}
    made = [*lines[:place], changed, *lines[place + 1 :]]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in made))
    assert f"damaged at line {place + 1}: it or a line before it was changed" in refusal(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"noise_multiplier": 9.0}, "its noise_scale is "),
        ({"noise_scale": 9.0}, "its noise_scale is 9, but its bound and multiplier make it "),
        ({"clip_norm": 0.5}, "its noise_scale is "),
        ({"clip_norm": None}, "it has no bound and scale"),
        ({"noise_scale": "much"}, "it has 'much' for 'noise_scale', which must be a number"),
        ({"people": "volunteers"}, "it is a release of volunteers alone, "),
        ({"adjacency": "replace one person"}, "its adjacency is not that of its sampling"),
        ({"round": -1}, "its round is -1"),
        ({"clip_norm": -1.0, "noise_scale": -1.0}, "its clip_norm is -1.0"),
        ({"clip_norm": math.inf, "noise_scale": math.inf}, "its clip_norm is inf"),
        ({"noise_scale": math.nan}, "its noise_scale is nan"),
        ({"noise": "none"}, "its noise is 'none', but its mechanism 'gaussian'"),
        (
            {"mechanism": "none", "noise_multiplier": 0.0, "clip_norm": None, "noise_scale": None},
            "its noise is 'secure', but its mechanism 'none'",
        ),
    ],
)
def test_numbers_that_disagree_are_noticed_even_where_the_hashes_fit(
    run: privrec.Run, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    folder = RunFolder(path=tmp_path)
    lines = read_ledger(run.folder)
    made = [append_release(folder, [], lines[0])]
    assert read_ledger(folder) == made
    changed = {**lines[1].as_json(), **change}
    changed["chain"] = _chain(made[0].chain, changed)
    with folder.ledger_path.open("a") as file:
        file.write(json.dumps(changed) + "\n")
    with pytest.raises(RunFolderError) as caught:
        read_ledger(folder)
    assert f"damaged at line 2: {said}" in str(caught.value)


def test_a_key_that_is_in_a_line_twice_is_noticed(run: privrec.Run, ledger: Path) -> None:
    """Its hash fits, but readers differ in which of the two they take."""
    whole = ledger.read_bytes()
    for old, new in ((b'{"round"', b'{"round": 9, "round"'), (b'{"law"', b'{"users": 9, "law"')):
        ledger.write_bytes(whole.replace(old, new))
        assert "damaged at line 1: it has a key twice" in refusal(run)


def test_a_last_line_without_its_newline_counts_and_a_torn_one_is_refused(
    run: privrec.Run, ledger: Path
) -> None:
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[:-1])
    assert len(read_ledger_file(ledger)) == len(read_ledger(run.folder)) == ROUNDS
    ledger.write_bytes(whole[:-2])
    with pytest.raises(RunFolderError, match=f"damaged at line {ROUNDS}: "):
        read_ledger_file(ledger)


def test_a_run_goes_on_with_a_ledger_whose_end_is_mended(run: privrec.Run, tmp_path: Path) -> None:
    """A torn line was never used; a whole one is kept, and nothing of a damaged ledger is lost."""
    folder, whole = RunFolder(path=tmp_path), run.folder.ledger_path.read_bytes()
    for text, kept in ((whole[:-1], whole), (whole + b'{"round": 5, "sta', whole), (b"", b"")):
        folder.ledger_path.write_bytes(text)
        assert len(start_ledger(folder)) == kept.count(b"\n")
        assert folder.ledger_path.read_bytes() == kept
    damaged = whole.replace(b'"round": 1', b'"round": 7') + b'{"round": 5'
    for text in (damaged, whole + whole.splitlines()[0]):
        folder.ledger_path.write_bytes(text)
        with pytest.raises(RunFolderError, match="damaged at line"):
            start_ledger(folder)
        assert folder.ledger_path.read_bytes() == text
