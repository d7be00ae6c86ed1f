"""Replies and requests that would fill a server's memory, or keep it waiting without end."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from flwr.app import Message, MessageType
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from uvicorn.server import ServerState

from privrec.errors import FederationError, WireError
from privrec.transport import processes as slow_clients
from privrec.transport import records
from privrec.transport.processes import LARGEST_REQUEST, NODES_MAY_CALL, TimedHttpProtocol, guarded
from privrec.transport.records import Reply, to_record
from privrec.transport.run_node import locked


class Store:
    """A SuperLink that has one reply."""

    def __init__(self, message: Message) -> None:
        objects = get_all_nested_objects(message)
        self.contents = {name: found.deflate() for name, found in objects.items()}
        self.message, self.tree = message, get_object_tree(message)

    def PullMessages(self, request: Any) -> Any:
        message = SimpleNamespace(metadata=SimpleNamespace(message_id=self.message.object_id))
        return SimpleNamespace(messages_list=[message], message_object_trees=[self.tree])

    def PullObject(self, request: Any) -> Any:
        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:
        pass


@pytest.mark.parametrize("fits", [True, False])
def test_equal_pieces_of_a_reply_count_each_time(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros of 40 MiB are sent as one piece of 5 MiB."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(records, "LARGEST_REPLY", (60 if fits else 30) * 2**20)
    message = Message(to_record(bytes(40 * 2**20)), dst_node_id=7, message_type=MessageType.TRAIN)
    client: Any = Store(message)
    assert sum(map(len, client.contents.values())) < 6 * 2**20
    reply = Reply(0, 7, "asked")
    if fits:
        assert reply.fetch(client, 1) is not None
        return
    with pytest.raises(WireError, match="more than"):
        reply.fetch(client, 1)


async def sent(port: int, begun: bytes) -> bytes:
    """Send the beginning of a request; return what comes until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begun)
    answer = b""
    try:
        while piece := await reader.read(2**16):
            answer += piece
    except ConnectionError:
        pass
    writer.close()
    return answer


def answers(begun: list[bytes], seconds: float, patch: pytest.MonkeyPatch) -> list[bytes]:
    """Send the beginnings of requests at once to a server that waits so long for the rest."""
    patch.setattr(slow_clients, "HEAD_SECONDS", seconds)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def play() -> list[bytes]:
        call = guarded(app, secret=b"secret", seconds=seconds)
        config = uvicorn.Config(
            call, http=TimedHttpProtocol, ws="none", lifespan="off", log_config=None
        )
        config.load()
        made = partial(TimedHttpProtocol, config=config, server_state=ServerState(), app_state={})
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await asyncio.wait_for(asyncio.gather(*(sent(port, b) for b in begun)), 120)

    return asyncio.run(play())


HEAD = f"POST {NODES_MAY_CALL}push HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n".encode()


def test_requests_that_are_never_finished_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a word, heads without an end, and bodies without an end."""
    begun = [b"", HEAD, HEAD + b"\r\nab"] * 14
    ended = answers(begun, 0.5, monkeypatch)
    assert not any(answer.startswith(b"HTTP/1.1 200") for answer in ended)
    # A whole one has all the time it needs here, however slow the machine is.
    [whole] = answers([HEAD + b"Connection: close\r\n\r\nabc"], 60.0, monkeypatch)
    assert whole.startswith(b"HTTP/1.1 200")


def test_a_second_program_on_a_nodes_folder_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(FederationError, match="another program serves")
    with locked(tmp_path), refused, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("said", [True, False])
def test_a_stranger_cannot_send_a_large_request(said: bool) -> None:
    """Neither one that says how long it is, nor one that only goes on."""
    taken: list[int] = []
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while True:
            taken.append(len((await receive())["body"]))

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"content-length", str(LARGEST_REQUEST + 1).encode())] if said else []
    scope = {"type": "http", "path": f"{NODES_MAY_CALL}push-object", "headers": headers}
    call = guarded(app, secret=b"secret")
    if said:
        asyncio.run(call(scope, receive, send))
        assert answers[0]["status"] == 413
        assert taken == []
    else:
        with pytest.raises(ConnectionError):
            asyncio.run(call(scope, receive, send))
        assert sum(taken) <= LARGEST_REQUEST
