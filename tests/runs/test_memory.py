"""A run that does not fit into the memory says so before it begins; how much one needs."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands import Refused, done
from loopback import Loopback
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.data.sources import load
from privrec.errors import SettingsError
from privrec.protocol.terms import phases_of, plan_of
from privrec.simulate import cost as machine
from privrec.transport import run_server as server
from tiny import DATA, as_options, round_of, without_features

Free = Callable[[int | None], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Return what sets how much memory seems to be free."""
    return lambda count: monkeypatch.setattr(machine, "available_memory", lambda: count)


def prepared_run(recipe: str, data: str, **settings: Any) -> Plan:
    return prepare(configure(recipe, data, settings), load(data))


MANY = "synthetic:users=60,items=2000,longest=20"
CLOSED = {"history": "closed-form", "history_items": 2000, "rounds": 0}
WITHIN = {"history": "subspace", "rounds": 0}
ON_TOP = {"history": "subspace", "subspace_rank": 8, "rounds": 3, "cohort": 40}
WIDE = {"cohort": 8, "embedding_size": 64, "tower_size": 4, "hidden": [256]}
TWO = {**WIDE, "stage1_cohort": 8, "delta": 1e-2}
WHOLE = {**CLOSED, "history_rank": 0}
CASES = [
    ("privrec-plus", CLOSED, 10**8, "set `history` to 'subspace', or `history_items` to at most"),
    (
        "privrec-plus",
        {**CLOSED, "history_rank": 0},
        10**8,
        "or `history_rank` to 128 and `history_",
    ),
    (
        "dp-privrec-plus",
        {"delta": 1e-3, "history": "closed-form"},
        10**7,
        "set `history` to 'subspace'",
    ),
    ("privrec-plus", WITHIN, 10**7, "set `subspace_rank` to at most"),
    ("privrec-plus", ON_TOP, 3 * 10**6, "set `rounds` to 0"),
    ("privrec", WIDE, 3 * 10**6, "set `embedding_size` to at most"),
    ("privrec-cen", WIDE, 3 * 10**6, "set `embedding_size` to at most"),
    ("dp-privrec", TWO, 9 * 10**6, "set `embedding_size` to at most"),
    ("ease", {}, 10**7, "choose 'privrec-plus', or data with fewer items"),
    ("item-knn", {}, 10**7, "choose 'privrec-plus', or data with fewer items"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "settings", "there", "advice"), CASES)
def test_what_does_not_fit_is_refused_in_one_line_before_any_file(
    recipe: str, settings: dict[str, Any], there: int, advice: str, refused: Refused, free: Free
) -> None:
    free(there)
    words = ("train", recipe, "--data", MANY, *as_options(settings))
    line = refused(*words)
    assert f" of memory and {there // 10**6} MB are free; " in line or "0.1 GB are free; " in line
    assert advice in line
    assert refused(*words, "--dry-run") == line
    free(None)  # Unknown: nothing is refused.
    machine.check_memory(prepared_run(recipe, MANY, **settings).stages())


@pytest.mark.parametrize(("recipe", "settings", "there", "advice"), CASES[:8])
def test_the_advice_fits(
    recipe: str, settings: dict[str, Any], there: int, advice: str, free: Free
) -> None:
    del advice
    free(there)

    def refusal(**more: Any) -> str:
        try:
            machine.check_memory(prepared_run(recipe, MANY, **{**settings, **more}).stages())
        except SettingsError as error:
            return str(error)
        return ""

    said = refusal().partition("; ")[2]
    found = re.findall(r"`(\w+)` to (?:at most )?(\d[\d,]*)", said)
    advised: dict[str, Any] = {name: int(number.replace(",", "")) for name, number in found}
    advised = advised or dict(re.findall(r"`(\w+)` to '(\w+)'", said))
    assert advised
    assert refusal(**advised) == ""
    if "at most" in said:
        # Twice as much would not fit: the advice is not far too low.
        name = found[-1][0]
        assert refusal(**{**advised, name: 2 * advised[name]})


@pytest.mark.slow
def test_a_million_items_and_the_closed_form_end_before_they_start(
    refused: Refused, free: Free
) -> None:
    free(20 * 10**9)
    settings = {"history": "closed-form", "history_items": 10**6}
    data = "synthetic:users=60,items=1000000,longest=20"
    line = refused("train", "privrec-plus", "--data", data, *as_options(settings))
    assert "the closed form over 1,000,000 items needs about 100,0" in line
    assert "20 GB are free; set `history` to 'subspace', or `history_items` to at most" in line


def test_a_reference_over_its_limit_is_refused_before_any_file(refused: Refused) -> None:
    line = refused("train", "ease", "--data", "synthetic:users=60,items=60000,longest=20")
    assert "14.4 GB for 60,000 items; the limit is 4 GB" in line


def test_a_server_is_refused_and_a_node_is_not(
    free: Free, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(1000)
    prepared = prepared_run("privrec-plus", DATA, rounds=0)
    federation = Loopback(prepared, tmp_path)
    assert phases_of(plan_of(federation.terms, prepared.task.federation.catalogue))
    run = tmp_path / "run"
    folder = SimpleNamespace(run=run, catalogue=tmp_path / "none")
    catalogue = prepared.task.federation.catalogue
    found = (folder, federation.terms, catalogue)
    monkeypatch.setattr(server, "read_server", lambda path: found)
    with pytest.raises(SettingsError, match="the closed form over 40 items needs"):
        server.serve(tmp_path, host="", port=0)
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("privrec-plus", {"rounds": 0}),
        ("privrec-plus", {"rounds": 0, "dislike_input": 0.0}),
        ("privrec-plus", {"rounds": 0, "history": "subspace", "subspace_rank": 300}),
        ("dp-privrec-plus", {"delta": 1e-4, "epsilon": 10**7, "force_delta": True}),
    ],
)
def test_the_memory_of_a_tower_is_as_counted(recipe: str, settings: dict[str, Any]) -> None:
    """The truth is what numpy asks for, all of it, at its peak."""
    prepared = prepared_run(recipe, "synthetic:users=300,items=900,longest=200", **settings)
    check_memory(prepared)


def test_the_memory_under_noise_without_features_is_as_counted() -> None:
    settings = {"delta": 1e-4, "epsilon": 10**7, "force_delta": True}
    data = without_features(load("synthetic:users=300,items=900,longest=200"))
    check_memory(prepare(configure("dp-privrec-plus", data.name, settings), data))


def check_memory(prepared: Plan) -> None:
    """Compare the largest stage after the first with what was counted."""
    first, *rest = prepared.stages()
    state, _ = round_of(prepared.task.federation, first, first.start(None))
    found = []
    for stage in rest:
        state = stage.start(state.params)
        assert stage.work is not None
        counted = stage.work(stage.tell(state)).bytes  # type: ignore[union-attr]
        tracemalloc.start()
        for _ in range(stage.rounds):
            state, _ = round_of(prepared.task.federation, stage, state)
        found.append((tracemalloc.get_traced_memory()[1], counted))
        tracemalloc.stop()
    assert all(peak < 1.5 * counted for peak, counted in found), found
    peak, counted = max(found)
    assert counted < peak * 1.5, found


def test_free_memory_is_that_of_the_machine_and_of_the_groups_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    monkeypatch.setattr(machine, "_PROC", proc)
    monkeypatch.setattr(machine, "_GROUPS", groups)

    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")

    write(proc / "meminfo", "MemTotal:  9000 kB\nMemAvailable:    5000 kB\n")
    assert machine.available_memory() == 5000 * 1024
    write(proc / "self/cgroup", "0::/outer/inner\n")
    write(groups / "outer/inner/memory.max", "max\n")
    write(groups / "outer/inner/memory.current", "10\n")
    write(groups / "outer/inner/memory.stat", "anon 7\ninactive_file 3\n")
    assert machine.available_memory() == 5000 * 1024
    # The outer group has a limit; of what it uses, 300 bytes are pages of files.
    write(groups / "outer/memory.max", "1000000\n")
    write(groups / "outer/memory.current", "400300\n")
    write(groups / "outer/memory.stat", "anon 400000\ninactive_file 300\n")
    assert machine.available_memory() == 600_000
    # Version 1, in a container: the group's own folder is not there, its root is.
    write(proc / "self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n")
    write(groups / "memory/memory.limit_in_bytes", "2000\n")
    write(groups / "memory/memory.usage_in_bytes", "500\n")
    write(groups / "memory/memory.stat", "cache 9\ntotal_inactive_file 100\n")
    assert machine.available_memory() == 1600


@pytest.mark.parametrize("free_", [0, 5, 99, 2500, 90_000])
def test_most_is_the_largest_that_fits(free_: int) -> None:
    fits = [count for count in range(1, 90) if 10 * count**2 <= free_]
    assert machine.most(lambda count: 10 * count**2, free_, 90) == max(fits, default=0)
    assert machine.most(lambda count: 10 * count, 123_456, 10**9) == 12_000  # Two digits.


@pytest.mark.slow
def test_how_many_items_get_a_vector() -> None:
    def line(recipe: str, *words: str) -> str:
        found = done("train", recipe, "--data", DATA, "--dry-run", "--set", "rounds=0", *words)
        (items,) = (part for part in found.splitlines() if part.startswith("items: "))
        return items

    rest = "get a vector; the others rank after them, by popularity"
    few = ("--set", "history_items=30")
    assert line("privrec-plus") == "items: all 40 get a vector"
    assert line("privrec-plus", *few) == "items: all 40 get a vector"  # In a subspace.
    assert line("privrec-plus", *few, "--set", "history=closed-form") == f"items: 30 of 40 {rest}"
    noised = ("dp-privrec-plus", *few, "--set", "delta=1e-3")
    assert line(*noised) == f"items: at most 30 of 40 {rest}"
    whole = line(*noised, "--set", "history=closed-form")  # If features turn out to count.
    assert whole == f"items: at most 40 of 40 {rest}"
