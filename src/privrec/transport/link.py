"""The server's side: a SuperLink as a child process, and questions to the nodes through it.

No app of Flower is ever executed. The run that Flower needs has an app that raises, and this
process takes that run's task for itself.
"""

import contextlib
import hashlib
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cryptography.hazmat.primitives import serialization

from privrec.errors import FederationError
from privrec.protocol.certificates import check_certificate, read_public_key
from privrec.transport.processes import (
    MODULE,
    SECRET_HEADER,
    child,
    prepare,
    private_folder,
    write_secret,
)
from privrec.transport.records import Reply, heartbeat, to_record

if TYPE_CHECKING:
    import httpx
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.protobuf.client import (
        ProtobufCall,
        ProtobufClient,
        ProtobufClientInterceptor,
        ProtobufRequestContext,
    )
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.superlink.grid import HttpGrid

LOG = logging.getLogger("privrec.server")
Ask = Callable[[Mapping[int, bytes], float], Iterator[tuple[int, bytes]]]
"""(request by node index, deadline in seconds) -> (node index, reply) as they arrive; a node that
does not answer is left out."""

# Chosen by hand: a reply waits 0.1 s on average, and a poll costs a few milliseconds.
POLL = 0.2
# A SuperLink is up after about 4 s on a machine with 2 cores.
START_SECONDS = 180.0
# A reply must outlive the deadline, or the SuperLink deletes it while it is fetched.
EXTRA_TTL = 60.0

APP = """[project]
name = "privrec-link"
version = "1.0.0"
description = "Never executed."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "privrec"
[tool.flwr.app.components]
serverapp = "never:app"
clientapp = "never:app"
"""
NEVER = 'raise RuntimeError("privrec never executes an app of Flower")\n'

_Client = TypeVar("_Client", bound="ProtobufClient")


@dataclass(frozen=True)
class Link:
    """What a server does with its nodes: ask them, and see which are online."""

    ask: Ask
    online: Callable[[], set[int]]


@contextlib.contextmanager
def open_link(folder: Path, public_keys: Sequence[str], *, host: str, port: int) -> Iterator[Link]:
    """Yield the link to the nodes with these keys; node index k has `public_keys[k]`.

    `folder` holds ca.crt, server.pem and server.key. The SuperLink keeps messages in memory only,
    so no reply is ever written to a disk, and a restarted server starts with an empty one.
    """
    for name in ("ca.crt", "server.pem"):
        check_certificate(folder / name, owner=folder)
    keys = [_pem(text) for text in public_keys]
    if len(set(keys)) < len(keys):
        raise FederationError("two nodes have the same public key")
    place = private_folder(folder / "superlink")
    prepare(place)
    server = _Server(
        address=f"{'127.0.0.1' if host == '0.0.0.0' else host}:{port}",  # noqa: S104 (a comparison)
        ca=(folder / "ca.crt").read_bytes(),
        secret=write_secret(place / "secret"),
        log=place / "superlink.log",
    )
    from flwr.supercore.control import ControlHttpClient

    with server.started(folder, host=host, port=port) as process:
        with server.client(ControlHttpClient) as control:
            server.wait(process, control)
            nodes = {_register(control, key): k for k, key in enumerate(keys)}
            run_id = _start_run(control)
        token = server.take_task(run_id)
        with _grid(server, token) as (client, grid):
            connection = _Connection(process, client, grid, nodes)
            yield Link(ask=partial(_ask, connection), online=connection.online)


@dataclass(frozen=True)
class _Server:
    """Where the SuperLink is, and how this process proves that it is its owner."""

    address: str
    ca: bytes
    secret: bytes
    log: Path

    @contextlib.contextmanager
    def started(self, folder: Path, *, host: str, port: int) -> Iterator["subprocess.Popen[bytes]"]:
        """Yield the process of a new SuperLink."""
        arguments = ["--host", host, "--port", str(port), "--isolation", "process"]
        arguments += ["--superexec-auth-secret-file", str(self.log.with_name("secret"))]
        arguments += ["--ssl-ca-certfile", str(folder / "ca.crt")]
        arguments += ["--ssl-certfile", str(folder / "server.pem")]
        arguments += ["--ssl-keyfile", str(folder / "server.key")]
        arguments += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        with child(MODULE, ["superlink", *arguments], log=self.log) as process:
            yield process

    def client(self, kind: type[_Client], *more: "ProtobufClientInterceptor") -> Any:
        """Return a context that is a client of this SuperLink, of the given kind."""
        return contextlib.closing(
            kind.from_server_address(
                self.address,
                insecure=False,
                root_certificates=self.ca,
                interceptors=[*self.interceptors(), *more],
            )
        )

    def interceptors(self) -> "list[ProtobufClientInterceptor]":
        """Return what every request of the owner carries: the version and the secret."""
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        return [RuntimeVersionHttpInterceptor(component_name="privrec"), _Secret(self.secret)]

    def wait(self, process: "subprocess.Popen[bytes]", control: "ControlHttpClient") -> None:
        """Return when the SuperLink answers, or raise `FederationError`."""
        import httpx
        from flwr.proto.control_pb2 import ListNodesRequest

        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if process.poll() is not None:
                raise FederationError(_why_stopped(self.log, self.address))
            try:
                control.ListNodes(ListNodesRequest())
            except httpx.HTTPStatusError as error:
                raise FederationError(
                    f"another server already listens on {self.address}"
                ) from error
            except httpx.TransportError as error:
                if "certificate" in str(error).lower():
                    raise FederationError(
                        f"the server's certificate is not for {self.address}: {error}"
                    ) from error
            else:
                return
            time.sleep(POLL)
        raise FederationError(f"the SuperLink did not start within {START_SECONDS:.0f} s")

    def take_task(self, run_id: int) -> str:
        """Return the token of the task of our run; the task of any other run is ended."""
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import (
            RuntimeTokenHttpInterceptor,
            SuperExecAuthHttpInterceptor,
        )
        from flwr.supercore.runtime import RuntimeHttpClient

        signed = SuperExecAuthHttpInterceptor(
            master_secret=self.secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
        )
        end = time.monotonic() + START_SECONDS
        with self.client(RuntimeHttpClient, signed) as runtime:
            while time.monotonic() < end:
                request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
                acquired = runtime.AcquireTask(request)
                if not acquired.token:
                    time.sleep(POLL)
                elif acquired.task.run_id == run_id:
                    return str(acquired.token)
                else:
                    token = RuntimeTokenHttpInterceptor(acquired.token)
                    with self.client(RuntimeHttpClient, token) as other:
                        other.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED))
        raise FederationError("the SuperLink did not start the run")


class _Secret:
    """Put the owner's secret into the headers of a request."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret.decode("ascii")

    def intercept(
        self, context: "ProtobufRequestContext", call_next: "ProtobufCall"
    ) -> "httpx.Response":
        """Return the response to the request with the header."""
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)


def _pem(text: str) -> bytes:
    """Return a node's public key as Flower stores it."""
    return read_public_key(text).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _why_stopped(log: Path, address: str) -> str:
    """Return one sentence on why a SuperLink ended, from its log."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "address already in use" in text.lower():
        return f"another server already listens on {address}"
    return f"the SuperLink stopped; its log is {log}"


def _register(control: "ControlHttpClient", key: bytes) -> int:
    """Return Flower's id of the node with this key, which may connect from now on."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    return int(control.RegisterNode(RegisterNodeRequest(public_key=key)).node_id)


def _start_run(control: "ControlHttpClient") -> int:
    """Return the id of a new run of an app that can do nothing."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(APP, encoding="utf-8")
        Path(folder, "never.py").write_text(NEVER, encoding="utf-8")
        content = build_fab_from_disk(Path(folder))
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)


@contextlib.contextmanager
def _grid(server: _Server, token: str) -> "Iterator[tuple[RuntimeHttpClient, HttpGrid]]":
    """Yield the client and the grid of the task with this token, which ends with the context."""
    import httpx
    from flwr.common.constant import SubStatus
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    with server.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token)) as client:

        class Grid(HttpGrid):
            """Flower's grid on our client: its own retries forever, and a 401 is a SIGINT to us."""

            def _connect(self) -> None:
                self._client = client

        grid = Grid(server.address, root_certificates=server.ca, token=token)
        heart = heartbeat(client)
        try:
            task = client.PullTaskInput(PullTaskInputRequest())
            # Messages that are made in this process take the run and the sender from here.
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            yield client, grid
        finally:
            heart.stop()
            with contextlib.suppress(httpx.HTTPError):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))


@dataclass(frozen=True)
class _Connection:
    """The SuperLink's process, the client and grid of our task, and node index by Flower's id."""

    process: "subprocess.Popen[bytes]"
    client: "RuntimeHttpClient"
    grid: "HttpGrid"
    nodes: Mapping[int, int]

    def online(self) -> set[int]:
        """Return the indices of the nodes that gave a sign of life within the last minute."""
        with self.errors():
            return {self.nodes[i] for i in self.grid.get_node_ids() if i in self.nodes}

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise `FederationError` if a request failed because the SuperLink or the run ended."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            if self.process.poll() is not None:
                raise FederationError("the SuperLink stopped during the run") from error
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise FederationError("the SuperLink ended the run") from error
            raise


def _ask(
    connection: _Connection, requests: Mapping[int, bytes], deadline: float
) -> Iterator[tuple[int, bytes]]:
    """Send the requests now, and return an iterator over (node index, reply)."""
    from flwr.app import Message, MessageType

    end = time.monotonic() + deadline
    node_ids = {index: node_id for node_id, index in connection.nodes.items()}
    waiting = []
    for index, request in requests.items():
        message = Message(
            to_record(request),
            dst_node_id=node_ids[index],
            message_type=MessageType.TRAIN,
            ttl=deadline + EXTRA_TTL,
        )
        with connection.errors():
            sent = list(connection.grid.push_messages([message]))
        waiting += [Reply(index, node_ids[index], message_id) for message_id in sent if message_id]
    return _replies(connection, waiting, end)


def _replies(
    connection: _Connection, waiting: list[Reply], end: float
) -> Iterator[tuple[int, bytes]]:
    """Yield (node index, reply) as they arrive, until all are there or `end` is reached."""
    import httpx

    while waiting:
        for reply in list(waiting):
            # One at a time: what is wrong with one reply must not take others with it.
            try:
                with connection.errors():
                    message = reply.fetch(connection.client, connection.grid.run.run_id)
                if message is None:
                    continue
                content = reply.content(message)
            except FederationError:
                raise
            except httpx.TransportError:
                continue
            except Exception as error:
                # It is no message, or too large. As empty bytes it is refused and counted above.
                LOG.warning("node %d: no message (%s)", reply.index, type(error).__name__)
                content = b""
            waiting.remove(reply)
            if content is not None:
                yield reply.index, content
        if time.monotonic() > end:
            return
        if waiting:
            time.sleep(POLL)
