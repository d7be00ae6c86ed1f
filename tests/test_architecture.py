"""Who may import whom (docs/architecture.md); and the limits that keep files readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "privrec"

# Each part may import the parts to its right in its own line, and nothing else of privrec.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "devices": set(),
    "paper": set(),
    "charts": set(),
    "toml": set(),
    "seeds": {"types"},
    "data": {"seeds", "errors", "toml", "types"},
    "models": {"data", "types"},
    "privacy": {"paper", "errors", "types"},
    "core": {"models", "privacy", "seeds", "types"},
    "federated": {"core", "models", "data", "privacy", "seeds", "types"},
    "pretrain": {"federated", "models", "data", "seeds", "types"},
    "evaluation": {"data", "errors", "types"},
    "history": {"evaluation", "data", "privacy", "seeds", "errors", "types"},
    "adapt": {"federated", "evaluation", "models", "data", "types"},
    "central": {"core", "federated", "models", "data", "privacy", "seeds", "types"},
    "config": {"core", "models", "data", "privacy", "errors", "toml"},
    "recipes": {"config", "evaluation", "privacy", "errors"},
    "records": {"config", "errors"},
    "ledgerfile": {"records", "privacy", "errors"},
    "report": {"charts", "paper", "data", "privacy"},
    "phone": {"federated", "models", "data", "types"},
    "noises": {"config", "data", "privacy", "types"},
    "stages": {
        "noises", "phone", "config", "core", "federated", "models", "pretrain", "data", "privacy",
        "seeds", "types",
    },
    "plus_softmax": {
        "stages", "phone", "config", "history", "core", "federated", "data", "privacy", "seeds",
        "types",
    },
    "plus": {
        "plus_softmax", "noises", "phone", "config", "history", "core", "data", "privacy",
        "errors", "types",
    },
    "rankers": {
        "plus", "adapt", "recipes", "config", "history", "federated", "evaluation", "models",
        "data", "errors", "types",
    },
    "device": {"rankers", "config", "history", "evaluation", "data", "errors"},
    "build": {
        "rankers", "stages", "plus", "noises", "recipes", "config", "central", "core",
        "evaluation", "data", "privacy", "seeds", "errors", "types",
    },
    "book": {
        "ledgerfile", "records", "config", "core", "privacy", "seeds", "errors",
    },
    "experiment": {
        "book", "build", "stages", "records", "config", "core", "evaluation", "data", "privacy",
        "errors", "types",
    },
    "runs": {
        "phone", "types", "book", "build", "stages", "experiment", "recipes", "records", "report",
        "config", "core", "device", "data", "privacy", "errors",
    },
    "export": {"runs", "device", "records", "data", "errors"},
    "spent": {"book", "ledgerfile", "records", "privacy", "errors"},
    "frontier": {"runs", "records", "charts", "report", "paper", "privacy", "errors"},
    "console": {"data", "errors"},
    "cli_data": {"console", "data", "errors"},
    "cli_frontier": {"console", "frontier", "privacy", "errors"},
    "cli_privacy": {"console", "spent", "privacy", "errors"},
    "cli": {
        "cli_data", "cli_frontier", "cli_privacy", "console", "export", "runs", "recipes",
        "records", "report", "config", "privacy", "errors",
    },
    "__init__": {"devices", "data", "device", "errors", "experiment", "privacy", "runs"},
}  # fmt: skip

# Within `federated` and `evaluation` a concrete model is an argument, never an import.
CONCRETE_MODELS = {"privrec.models.dssm"}
SERVED_BY_API_ONLY = {"federated", "evaluation"}

# Heavy or risky libraries stay where they belong.
HOMES = {
    "polars": {"data"},
    "optax": {"core", "federated", "central"},
    "dp_accounting": {"privacy"},
    "autodp": {"privacy"},
    "cryptography": {"privacy"},
    "typer": {"cli", "cli_data", "cli_frontier", "cli_privacy", "console"},
    "matplotlib": {"frontier"},
    "rich": {"console"},
    "safetensors": {"records"},
    "pydantic": {"config"},
}


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [alias.name for alias in node.names]
            if node.module == "privrec":
                found |= {f"privrec.{name}" for name in names}
            else:
                found.add(node.module)
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"say in ALLOWED what {part} may import"
    for name in imports(path):
        if name == "privrec.__version__":
            continue
        if name.startswith("privrec."):
            target = name.split(".")[1]
            assert target in ALLOWED[part] | {part}, f"{part} must not import {name}"
            if part in SERVED_BY_API_ONLY:
                assert name not in CONCRETE_MODELS, f"{part} takes models as arguments"
        library = name.split(".")[0]
        if library in HOMES:
            assert part in HOMES[library], f"{library} belongs in {HOMES[library]}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            # A factory holds the functions that it returns; they count for themselves.
            inner = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            own = node.end_lineno - node.lineno + 1
            own -= sum((child.end_lineno or 0) - child.lineno + 1 for child in inner)
            assert own <= 60, f"{path.name}:{node.name} has {own} lines"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_drawer_modules_and_no_asserts(path: Path) -> None:
    assert path.stem not in {"utils", "helpers", "base", "manager", "engine", "common", "misc"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def test_a_phone_needs_numpy_alone() -> None:
    """What ranks with a history tower waits for none of the libraries that train it."""
    heavy = sorted({*HOMES, "jax", "jaxlib", "scipy"})
    code = f"import sys, privrec.device; print(sorted(sys.modules.keys() & set({heavy})))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_graph_has_no_cycle() -> None:
    done: set[str] = set()

    def visit(part: str, trail: tuple[str, ...]) -> None:
        assert part not in trail, f"cycle: {' -> '.join([*trail, part])}"
        if part not in done:
            for target in ALLOWED[part]:
                visit(target, (*trail, part))
            done.add(part)

    for part in ALLOWED:
        visit(part, ())
