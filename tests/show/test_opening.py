"""`privrec watch --open`: the token stays out of the browser's command line."""

import stat
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from commands import invoke
from privrec.show import server


def test_the_browser_gets_a_file_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, str, int]] = []

    def browser(address: str) -> bool:
        file = Path(address.removeprefix("file://"))
        opened.append((address, file.read_text(), stat.S_IMODE(file.stat().st_mode)))
        return True

    def serve(site: Any, port: int, ready: Any) -> None:
        ready(1234)
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", browser)
    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(server, "step_back", lambda: None)
    result = invoke("watch", tmp_path / "run", "--open")
    [(address, text, mode)] = opened
    assert "token" not in address
    assert "url=http://127.0.0.1:1234/?token=" in text
    assert mode == 0o600
    assert not Path(address.removeprefix("file://")).exists()
    assert "goes on" not in result.output
