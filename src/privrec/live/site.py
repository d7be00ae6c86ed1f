"""What `privrec watch` serves: the page of a run and its figures, and the calculator."""

import json
import threading
import time
from pathlib import Path
from typing import Any

from privrec.live.calculator import calculate, calculated, curves
from privrec.live.pages import calculator_page, run_charts, watch_page
from privrec.live.server import HTML, Answer, Site, as_json
from privrec.live.status import Watched, unreadable

REFRESH_SECONDS = 0.5
"""The folder is looked at no more often than this, whoever asks. Chosen by hand."""
QUIET_SECONDS = 5.0
"""The folder is looked at so often if nobody asks: the first answer after a pause is not older."""


class _Refreshed:
    """The answers about a run, made again in a thread: soon after someone has asked, or later."""

    def __init__(self, watched: Watched) -> None:
        self._watched, self._asked = watched, threading.Event()
        self._drawn = -1
        self._charts = b""
        self._refresh()
        threading.Thread(target=self._keep_fresh, daemon=True).start()

    def status(self) -> bytes:
        self._asked.set()
        return self._status

    def charts(self) -> bytes:
        return self._charts

    def releases(self) -> bytes:
        return self._releases

    def _keep_fresh(self) -> None:
        while True:
            self._asked.wait(QUIET_SECONDS)
            self._asked.clear()
            self._refresh()
            time.sleep(REFRESH_SECONDS)

    def _refresh(self) -> None:
        """Look again. Whatever goes wrong, the page says so, and the next look may succeed."""
        try:
            found = self._watched.look()
            if self._watched.drawn != self._drawn:
                charts = run_charts(self._watched.losses, self._watched.looks)
                self._charts = as_json({"charts": charts}).wire
                self._drawn = self._watched.drawn
            status = _as_status(found)
        except Exception as error:
            found = unreadable(self._watched.folder.path, error)
            status = _as_status(found)
        self._releases = as_json(self._watched.releases()).wire
        self.says: dict[str, str] = found["says"]
        self._status = status


def _as_status(found: dict[str, Any]) -> bytes:
    return Answer(json.dumps(found, allow_nan=False).encode() + b"\n").wire


def site_of(run: Path | None) -> Site:
    """Return the pages of a run and the calculator, or the calculator alone."""
    questions = {"/calculate": calculate, "/calculated": calculated, "/curves": curves}
    site = Site(pages={}, questions=questions)
    ask = f"?token={site.token}"
    links = [("Run", f"./{ask}"), ("Calculator", f"calculator{ask}")] if run is not None else []
    form = Answer(calculator_page(links, has_run=run is not None).encode(), HTML).wire
    pages = {"/calculator": lambda: form, "/": lambda: form}
    if run is not None:
        fresh = _Refreshed(Watched(run))
        first = Answer(watch_page(str(run), fresh.says, links).encode(), HTML).wire
        pages |= {"/": lambda: first, "/status": fresh.status, "/charts": fresh.charts}
        pages["/releases"] = fresh.releases
    return Site(pages=pages, questions=site.questions, token=site.token)
