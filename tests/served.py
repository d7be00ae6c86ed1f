"""A site served to a test, in a thread; and requests as they go over the wire."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from privrec.show.server import Site, new_loop, serving


@dataclass(frozen=True)
class Served:
    """A site that answers on a port of this machine."""

    site: Site
    port: int

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}?token={self.site.token}"

    def ask(
        self, path: str, *, method: str = "GET", host: str | None = None, **query: str | None
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body; the token is the site's unless it is given."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked: dict[str, str | None] = {"token": self.site.token, **query}
        asked = {key: value for key, value in asked.items() if value is not None}
        headers = {"Host": host or f"127.0.0.1:{self.port}"}
        line.request(method, f"{path}?{urlencode(asked)}", headers=headers)
        answer = line.getresponse()
        body = answer.read().decode()
        line.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body

    def document(self, path: str, **query: str) -> Any:
        status, _, body = self.ask(path, **query)
        assert status == 200, body
        return json.loads(body)


@contextmanager
def served(site: Site) -> Iterator[Served]:
    opened: list[int] = []
    is_open = threading.Event()
    loop = new_loop()

    def ready(port: int) -> None:
        opened.append(port)
        is_open.set()

    async def run() -> None:
        await serving(site, 0, ready)

    task: list[asyncio.Task[None]] = []

    def work() -> None:
        task.append(loop.create_task(run()))
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task[0])

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert is_open.wait(60)
    try:
        yield Served(site, opened[0])
    finally:
        loop.call_soon_threadsafe(task[0].cancel)
        thread.join(60)
        loop.close()
