"""A site served to a test, in a thread; and requests as they go over the wire."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from privrec.show.server import Site, listening, server_of


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
    with listening(0) as line:
        port = line.getsockname()[1]
        server = server_of(site, line)
        thread = threading.Thread(target=server.run, args=([line],), daemon=True)
        thread.start()
        try:
            yield Served(site, port)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
