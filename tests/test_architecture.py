"""The allowed imports between packages (docs/architecture.md), and limits on file sizes."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "privrec"

# A package may import itself and the packages in the lines below its own, nothing else of privrec.
LAYERS: list[set[str]] = [
    {"cli"},
    {"testing"},
    {"show"},
    {"reproduce"},
    {"transport", "attacks"},
    {"protocol", "runs"},
    {"device"},
    {"algorithms"},
    {"settings"},
    {"simulate", "evaluation"},
    {"core"},
    {"privacy"},
    {"data"},
    {"errors", "seeds", "toml", "types"},
]
# The top-level `privrec` imports its public names from any package, each at its first use.
DOOR = "__init__"

# In these packages a concrete model is an argument, never an import.
CONCRETE_MODELS = {"privrec.algorithms.reptile.dssm"}
SERVED_BY_API_ONLY = {"core", "simulate", "evaluation"}

# Heavy or risky libraries may be imported only in these places.
HOMES = {
    "polars": {"data", "runs", "testing"},
    "optax": {"core", "algorithms"},
    "dp_accounting": {"privacy"},
    "autodp": {"privacy"},
    "cryptography": {"privacy", "protocol", "transport"},
    "jax_privacy": {"attacks"},
    "sklearn": {"attacks"},
    "typer": {"cli"},
    "jinja2": {"show"},
    "httpx": {"transport"},
    "flwr": {"transport"},
    "starlette": {"show", "transport"},
    "uvicorn": {"show", "transport"},
    "rich": {"cli"},
    "safetensors": {"runs", "core"},
    "pydantic": {
        "errors",
        "settings",
        "data",
        "algorithms",
        "protocol",
        "reproduce",
        "runs",
        "show",
    },
}


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [alias.name for alias in node.names]
            if node.module == "privrec":
                found |= {f"privrec.{name}" for name in names}
            else:
                found.add(node.module)
    return found


def layer_of(room: str) -> int:
    found = [k for k, rooms in enumerate(LAYERS) if room in rooms]
    assert found, f"say in LAYERS where {room} belongs"
    return found[0]


@cache
def modules() -> list[tuple[str, str, Path, ast.Module]]:
    """Return the package, the name for a message, the path and the syntax of every module."""
    return [
        (part_of(path), str(path.relative_to(ROOT)), path, ast.parse(path.read_text("utf-8")))
        for path in files()
    ]


def wrong_import(part: str, name: str) -> str:
    """Return why a package must not import this, or nothing."""
    if name.startswith("privrec.") and name != "privrec.__version__" and part != DOOR:
        target = name.split(".")[1]
        down = layer_of(target) > layer_of(part)
        if not (down or target == part):
            return f"{part} must not import {name}"
        if part in SERVED_BY_API_ONLY and name in CONCRETE_MODELS:
            return f"{part} takes models as arguments, and must not import {name}"
    library = name.split(".", maxsplit=1)[0]
    if part not in HOMES.get(library, {part}):
        return f"{library} belongs in {HOMES[library]}"
    return ""


def test_imports_point_one_way() -> None:
    wrong = [
        f"{place}: {why}"
        for part, place, _, tree in modules()
        for name in imports(tree)
        if (why := wrong_import(part, name))
    ]
    assert not wrong, "\n".join(wrong)


def test_flower_is_used_by_its_public_modules_and_in_one_place() -> None:
    """Its other modules change with each version, and privrec works without it."""
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    for _, place, _, tree in modules():
        used = {name for name in imports(tree) if name.split(".")[0] == "flwr"}
        assert used <= (public if place.startswith("transport/flower/") else set()), place


def test_few_modules_lie_in_the_root() -> None:
    assert len([path for path in ROOT.glob("*.py") if path.stem != DOOR]) <= 8


def test_no_chain_of_imports_is_long() -> None:
    """From the command to the errors, so that whoever reads need not keep more in mind."""
    names = {
        ".".join(("privrec", *path.relative_to(ROOT).with_suffix("").parts)) for path in files()
    }
    edges: dict[str, set[str]] = {}
    for _, _, path, tree in modules():
        own = ".".join(("privrec", *path.relative_to(ROOT).with_suffix("").parts))
        edges[own] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                edges[own] |= found & names - {own}

    @cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(below) for below in edges[name]), key=len, default=()))

    longest = max((chain(name) for name in names if not name.endswith("__init__")), key=len)
    assert len(longest) <= 17, " > ".join(longest)


def test_files_and_functions_stay_small() -> None:
    large = []
    for part, place, path, tree in modules():
        lines = len(path.read_text("utf-8").splitlines())
        large += [f"{place} has {lines} lines"] * (lines > 700)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                large += [f"{place}: {node.name} has {size} lines"] * (size > 60)
                positional = len(node.args.posonlyargs) + len(node.args.args)
                if positional > 6 and part != "cli":  # A command's parameters are its options.
                    large.append(f"{place}: {node.name} has {positional} positional parameters")
    assert not large, "\n".join(large)


def test_no_drawer_modules_and_no_asserts() -> None:
    """But in `testing`, whose asserts are what it is for."""
    drawers = {"utils", "helpers", "base", "manager", "engine", "common", "misc"}
    assert not [place for _, place, path, _ in modules() if path.stem in drawers]
    asserts = [
        f"{place}:{node.lineno}"
        for part, place, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and part != "testing"
    ]
    assert not asserts


def test_no_code_comes_from_the_network() -> None:
    """What parties say to each other is read by nothing that could run it."""
    risky = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "importlib", "runpy", "code"}
    calls = {"eval", "exec", "compile", "__import__"}
    for part, place, _, tree in modules():
        if part in ("transport", "protocol"):
            assert not risky & {name.split(".")[0] for name in imports(tree)}, place
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            assert not calls & names, place


def test_a_phone_needs_numpy_alone() -> None:
    """Ranking with a history tower imports none of the libraries that training needs."""
    heavy = sorted({*HOMES, "jax", "jaxlib", "scipy"})
    code = f"import sys, privrec.device; print(sorted(sys.modules.keys() & set({heavy})))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
