"""The example notebook runs from top to bottom, and shows what its texts promise."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def read() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The notebook with its outputs, and the folder that was its temporary one."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("kernel")
    # An installed kernel named python3 may be of another environment.
    manager = AsyncKernelManager()
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, display_name="this", language="python")
    notebook = read()
    client = NotebookClient(
        notebook, km=manager, timeout=300, startup_timeout=300, iopub_timeout=60, resources={}
    )
    paths = {"TMPDIR": folder, "IPYTHONDIR": folder / "ipython", "JUPYTER_RUNTIME_DIR": folder}
    env = {**os.environ, **{name: str(path) for name, path in paths.items()}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the libraries that start the kernel.
        client.execute(env=env, cwd=str(folder), cleanup_kc=True)
    return notebook, folder


def texts(notebook: Any, code: str) -> dict[str, str]:
    """Return what the one cell with this code shows at last, by its kind."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and code in cell.source]
    return dict(cell.outputs[-1].get("data") or {"text/plain": cell.outputs[-1].get("text", "")})


@pytest.mark.slow
def test_every_cell_runs_and_nothing_is_left(played: tuple[Any, Path]) -> None:
    notebook, folder = played
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [out for cell in cells for out in cell.outputs if out.output_type == "error"]
    assert not list(folder.glob("privrec-*"))


@pytest.mark.slow
def test_the_cells_show_what_their_texts_promise(played: tuple[Any, Path]) -> None:
    notebook, _ = played
    assert texts(notebook, "data = privrec.load")["text/plain"].startswith("Federation('films'")
    privacy = texts(notebook, "privacy().statement")["text/plain"]
    assert privacy.startswith("(None, 7.") or privacy.startswith("(None, 8.0")
    assert "popularity" in texts(notebook, "plain.evaluate()")["text/plain"]
    assert "without noise" in texts(notebook, "both = privrec.compare")["text/plain"]
    assert "validation@20" in texts(notebook, "plain.history")["text/plain"]
    assert "better_than" in texts(notebook, "me.recommend")["text/plain"]
    # The bar of the training was shown, and is empty at its end.
    [cell] = [cell for cell in notebook.cells if "noised = privrec.train" in cell.source]
    bar = "".join(out.text for out in cell.outputs if out.output_type == "stream")
    assert "\r" in bar
    assert not bar.rpartition("\r")[2].strip()


def test_no_output_is_stored_in_the_repository() -> None:
    for cell in read().cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
