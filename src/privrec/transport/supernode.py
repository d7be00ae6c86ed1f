"""The node's side: a SuperNode as a child process, and a loop that answers what it receives.

Flower would start a process for every message and run the app that the server sent. Here the
messages are answered in this process by our own function, and the server's app is never opened.
"""

import contextlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from privrec.errors import FederationError
from privrec.protocol.certificates import RENEW, check_certificate, read_private_key
from privrec.transport.processes import MODULE, POLL, child, prepare, private_folder, write_secret
from privrec.transport.records import from_record, heartbeat, to_record

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.supercore.protobuf.client import ProtobufClientInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

Handle = Callable[[bytes], bytes]

# A SuperNode that ended is started again after 1, 2, 4, ... 15 s (chosen by hand). Flower accepts
# a restarted node only after 60 s without a sign of life of the old one.
FIRST_WAIT, LONGEST_WAIT = 1.0, 15.0

# What a SuperNode's log says when it ended, and what that means; the first that fits counts.
REASONS = {
    r"CERTIFICATE_VERIFY_FAILED.*expired": (
        "the certificate of {server} has expired; its operator makes a new one with: {renew}"
    ),
    r"CERTIFICATE_VERIFY_FAILED.*(mismatch|not valid for)": (
        "the certificate of {server} is for another host; its operator adds a name with: {renew}"
        " --name NAME"
    ),
    r"CERTIFICATE_VERIFY_FAILED": (
        "the certificate of {server} was not signed by the authority in {ca}"
    ),
    r"WRONG_VERSION_NUMBER|record layer failure": "{server} speaks plain HTTP instead of TLS",
    r"code: 2004|Failed to activate|401 Unauthorized|Invalid SuperNode authentication": (
        "{server} does not accept the key {key}: it is not enrolled there, or in use elsewhere"
    ),
}


class _Stopped(BaseException):
    """A signal asked this process to stop; handlers that catch every `Exception` let it pass."""


class _Broken(Exception):
    """A task cannot be answered, so the SuperNode would wait for its reply forever."""


@dataclass
class _Node:
    """One node: its function, where things are, and whether it was ever online."""

    handle: Handle
    address: str
    secret: bytes
    log: Path
    on_state: Callable[[str], None]
    was_online: bool = False
    state: str = field(default="", init=False)

    def tell(self, state: str) -> None:
        """Call `on_state` if the state is a new one."""
        if state != self.state:
            self.state = state
            self.on_state(state)


def _silent(_state: str) -> None:
    """Ignore the state."""


def serve(
    handle: Handle,
    *,
    folder: Path,
    superlink: str,
    ca: Path,
    key: Path,
    port: int,
    on_state: Callable[[str], None] = _silent,
    patience: float = 90.0,
) -> None:
    """Answer every request with `handle(request)` until SIGTERM or SIGINT, then return.

    `on_state` hears "starting", "online", "offline" and "stopped". Raises `FederationError` if the
    server was never reached for `patience` seconds and the SuperNode's log says what is wrong.
    """
    check_certificate(ca)
    read_private_key(key)
    place = private_folder(folder / "supernode")
    prepare(place)
    secret = write_secret(place / "secret")
    node = _Node(handle, f"127.0.0.1:{port}", secret, place / "supernode.log", on_state)
    arguments = ["--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--superexec-auth-secret-file", str(place / "secret"), "--superlink", superlink]
    arguments += ["--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    give_up, wait = time.monotonic() + patience, FIRST_WAIT
    try:
        with _signals():
            while True:
                node.tell("offline" if node.was_online else "starting")
                with child(MODULE, ["supernode", *arguments], log=node.log) as process:
                    if _work(node, process):
                        wait = FIRST_WAIT
                text = node.log.read_text(encoding="utf-8", errors="replace")
                reason = _reason(text, server=superlink, ca=ca, key=key)
                if "address already in use" in text.lower():
                    raise FederationError(f"port {port} is in use; choose another for this node")
                if reason and not node.was_online and time.monotonic() > give_up:
                    raise FederationError(reason)
                time.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
    except _Stopped:
        pass
    finally:
        node.tell("stopped")


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into `_Stopped` within the context (in the main thread)."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(text: str, **names: object) -> str:
    """Return what a SuperNode's log says is wrong, as one sentence, or "" if nothing known."""
    for pattern, sentence in REASONS.items():
        if re.search(pattern, text, re.IGNORECASE):
            return sentence.format(**names, renew=RENEW.format(folder="FOLDER"))
    return ""


def _work(node: _Node, process: "subprocess.Popen[bytes]") -> bool:
    """Answer requests until the SuperNode ends; return whether it was online."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signed = SuperExecAuthHttpInterceptor(
        master_secret=node.secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
    )
    online = False
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    with _client(node, signed) as client:
        while process.poll() is None:
            if not online and b"SuperNode ID:" in node.log.read_bytes():
                online = node.was_online = True
                node.tell("online")
            try:
                # Before the SuperNode is online, its port may belong to another process.
                token = client.AcquireTask(request).token if online else ""
                if token:
                    _answer(node, token)
                    continue
            except _Broken:
                break
            except (httpx.HTTPError, ValueError):
                pass  # the SuperNode is ending or restarts
            time.sleep(POLL)
    return online


@contextlib.contextmanager
def _client(node: _Node, interceptor: "ProtobufClientInterceptor") -> "Iterator[RuntimeHttpClient]":
    """Yield a client of the SuperNode of this machine."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    version = RuntimeVersionHttpInterceptor(component_name="privrec")
    client = RuntimeHttpClient.from_server_address(
        node.address, insecure=True, root_certificates=None, interceptors=[version, interceptor]
    )
    try:
        yield client
    finally:
        client.close()


def _answer(node: _Node, token: str) -> None:
    """Take the message of one task, and send the reply to it."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    with _client(node, RuntimeTokenHttpInterceptor(token)) as client:
        heart = heartbeat(client)
        try:
            # The app of the server is in what is pulled; it is dropped unopened.
            message, context = pull_task_input(client)[:2]
            push_message(client, _reply(node.handle, message), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except Exception as error:
            raise _Broken from error
        finally:
            heart.stop()


def _reply(handle: Handle, message: "Message") -> "Message":
    """Return the reply to a message: bytes, or an error that names only the exception's class."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode

    try:
        return Message(to_record(handle(from_record(message.content))), reply_to=message)
    except Exception as error:
        reason = type(error).__name__
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
