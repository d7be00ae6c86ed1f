"""compose.yaml: its steps are played in one process, and no party gets what is another's."""

import importlib
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from commands import done, invoke, tree

COMPOSE = Path(__file__).parents[2] / "compose.yaml"
CROSSES = {"enrolment.json", "terms.json", "ca.crt", "catalogue.json"}
"""The names of all files that another party may see."""
PEOPLE = {"a": range(12), "b": range(12, 24)}


def services() -> dict[str, Any]:
    whole = importlib.import_module("yaml").safe_load(COMPOSE.read_text())
    found: dict[str, Any] = whole["services"]
    return found


def steps() -> list[str]:
    """Return the commands in the comment at the top of the file."""
    lines = COMPOSE.read_text().splitlines()
    shown = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    return "\n".join(shown).replace("\\\n", " ").splitlines()


def mounts(service: str) -> dict[Path, Path]:
    """Return the folders of this machine by where a container has them."""
    pairs = [volume.split(":")[:2] for volume in services()[service]["volumes"]]
    return {Path(inside): Path(outside) for outside, inside in pairs}


def outside(service: str, word: str) -> str:
    """Return a word of a container's command with its path on this machine."""
    for inside, folder in mounts(service).items():
        if word.startswith("/") and Path(word).is_relative_to(inside):
            return str(folder / Path(word).relative_to(inside))
    return word


def import_people(name: str) -> None:
    """Write the data folder of a node."""
    lines = [f"p{k},i{(k + 3 * j) % 8},{3 + j % 3}\n" for k in PEOPLE[name] for j in range(6)]
    Path(f"{name}.csv").write_text("user,item,value\n" + "".join(lines))
    Path("items.csv").write_text("item,title\n" + "".join(f"i{k},Title {k}\n" for k in range(8)))
    words = ("--items", "items.csv", "--positive-above", "3", "--out", f"federation/data-{name}")
    invoke("data", "import", f"{name}.csv", *words)


@pytest.fixture
def played(scratch: Path) -> dict[str, bytes]:
    """Play all steps; return what each file has that a container made, by 'service name'."""
    for name in PEOPLE:
        import_people(name)
    made: dict[str, bytes] = {}
    for step in steps():
        words = shlex.split(step, comments=True)
        if words[:4] == ["docker", "compose", "run", "--rm"]:
            before, service = tree(scratch), words[4]
            done(*(outside(service, word) for word in words[5:]))
            for path, content in tree(scratch).items():
                if content and content != before.get(path):
                    made[f"{service} {Path(path).name}"] = content
        elif words[:2] != ["docker", "compose"]:
            subprocess.run(["bash", "-c", step], check=True)
    return made


@pytest.mark.slow
def test_no_party_sees_what_is_anothers(played: dict[str, bytes]) -> None:
    assert {name.split()[0] for name in played} == {"server", "a", "b"}
    owners = {content: name.split() for name, content in played.items()}
    for service in services():
        for folder in mounts(service).values():
            assert folder.is_dir(), folder
            for path in filter(Path.is_file, folder.rglob("*")):
                owner, name = owners.get(path.read_bytes(), [service, path.name])
                assert owner == service or name in CROSSES, f"{service} sees {path}"
    # A folder with anybody's key or people is mounted by one party alone.
    private = [p.parent for p in Path("federation").rglob("*") if p.name in ("key", "server.key")]
    private += [p.parent for p in Path("federation").rglob("*") if p.suffix == ".parquet"]
    private += [path.parent for path in Path("federation").rglob("people.safetensors")]
    assert len(set(private)) == 5
    for folder in private:
        seen = [s for s in services() if any(map(folder.is_relative_to, mounts(s).values()))]
        assert len(seen) == 1, f"{seen} see {folder}"


@pytest.mark.usefixtures("played")
def test_what_containers_are_started_with_has_all_it_needs() -> None:
    for service, entry in services().items():
        words = [outside(service, word) for word in entry["command"].split()]
        only = "--prepare-only" if service == "server" else "--dry-run"
        shown = done(*words, only)
        assert "federation of 2 nodes, 24 people" in shown
        assert service == "server" or f"{service} (this node)" in shown
