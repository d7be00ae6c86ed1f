"""A stock Flower on this machine: a SuperLink, SuperNodes with keys of their own, and TLS."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from privrec.transport.local import LocalFederation, free_port, make_local

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-flower" / "bin"
"""Flower has strict requirements, so it has an environment of its own: `make flower`."""
WAIT = 900.0
_TLS = """
openssl req -x509 -newkey rsa:2048 -nodes -sha256 -subj /O=x/CN=x-CA -days 2 -keyout ca.key \
    -out ca.crt -addext basicConstraints=critical,CA:TRUE \
    -addext keyUsage=critical,keyCertSign,cRLSign
openssl req -newkey rsa:2048 -nodes -subj /O=x/CN=localhost -keyout server.key -out server.csr
printf "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n" > ext.cnf
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.pem -days 2 \
    -sha256 -extfile ext.cnf
for k in {nodes}; do ssh-keygen -q -t ecdsa -b 384 -N "" -f node$k -C ""; done
"""
_SUPERLINK = """
[superlink]
default = "tls"
[superlink.tls]
address = "127.0.0.1:{port}"
root-certificates = "{path}/ca.crt"
[superlink.engine]
address = ":local-in-memory:"
options.num-supernodes = {nodes}
options.backend.client-resources.num-cpus = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flower:
    """A Flower whose files are in `path`; `port` is the SuperLink's."""

    path: Path
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which nothing of Flower or Ray calls home or installs anything."""
        no = ("FLWR", "PYTHONDONTWRITEBYTECODE")  # Each message starts a process.
        ours = {name: os.environ[name] for name in os.environ if not name.startswith(no)}
        return ours | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FLWR_HOME": str(self.path),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def done(self, *words: str | Path) -> str:
        """Run a command of the environment; return what it prints, also on stderr."""
        ran = subprocess.run(
            [BIN / words[0], *words[1:]],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=WAIT,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    @contextmanager
    def started(self, log: str, *words: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
        """Run a program of Flower until the context ends; its processes end with it."""
        with (self.path / log).open("ab") as out:
            process = subprocess.Popen(
                [BIN / words[0], *words[1:]],
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_all(self) -> None:
        """Kill what runs with this Flower's files: the SuperLink of the engine stays by itself."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == str(self.path):
                    process.kill()

    def node(self, number: int, config: str) -> Any:
        """Return a context in which a SuperNode runs."""
        return self.started(
            f"node{number}.log",
            *("flower-supernode", "--root-certificates", self.path / "ca.crt"),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--auth-supernode-private-key", self.path / f"node{number}"),
            *("--node-config", config),
        )


def prepared_flower(path: Path, nodes: int) -> Flower:
    """Return a Flower with keys and certificates for so many nodes; nothing of it runs yet."""
    flower = Flower(path=path, port=free_port())
    path.mkdir()
    numbers = " ".join(map(str, range(nodes)))
    subprocess.run(
        ["bash", "-ec", _TLS.replace("{nodes}", numbers)], cwd=path, capture_output=True, check=True
    )
    config = _SUPERLINK.format(port=flower.port, path=path, nodes=nodes)
    (path / "config.toml").write_text(config)
    return flower


@contextmanager
def superlink(flower: Flower, nodes: int) -> Iterator[None]:
    """Run a SuperLink that lets the nodes in; nobody else."""
    with flower.started(
        "superlink.log",
        *("flower-superlink", "--host", "127.0.0.1", "--port", str(flower.port)),
        *("--ssl-ca-certfile", flower.path / "ca.crt"),
        *("--ssl-certfile", flower.path / "server.pem"),
        *("--ssl-keyfile", flower.path / "server.key", "--enable-supernode-auth"),
        *("--disable-runtime-dependency-installation", "--database", flower.path / "state.db"),
    ):
        for number in range(nodes):
            key = flower.path / f"node{number}.pub"
            wait_until(lambda key=key: _registers(flower, key))  # type: ignore[misc]
        yield


def _registers(flower: Flower, key: Path) -> bool:
    try:
        flower.done("flwr", "supernode", "register", key, "tls", "--name", key.stem)
    except AssertionError as error:
        if "already" in str(error).lower():
            return True
        time.sleep(1)
        return False
    return True


def wait_until(is_so: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for an event, with a generous limit."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


def federation(
    flower: Flower, path: Path, recipe: str, data: str, settings: Mapping[str, Any], nodes: int = 3
) -> LocalFederation:
    """Return a federation for Flower whose nodes have accepted its terms, and its app."""
    terms = {"transport": "flower", "deadline": 120.0, "min_people": 1, **settings}
    local = make_local(path, recipe, data, nodes=nodes, settings=terms)
    for number in range(nodes):
        node = local.node(number)
        said = flower.done(
            "privrec", "federate", "flower-node", node, "--terms", local.server.terms
        )
        assert f'privrec-node="{node}"' in said
    words = ("--out", path / "app", "--nodes", path / "nodes")
    flower.done("privrec", "federate", "flower-app", local.server.path, *words)
    return local


@contextmanager
def running(flower: Flower, local: LocalFederation) -> Iterator[None]:
    """Run the SuperLink and a SuperNode for each node of a federation."""
    numbers = range(len(local.terms.members))
    with ExitStack() as stack:
        stack.enter_context(superlink(flower, len(numbers)))
        for number in numbers:
            node = f'privrec-node="{local.node(number)}"'
            stack.enter_context(flower.node(number, node))
        yield
