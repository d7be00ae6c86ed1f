"""Bytes as Flower's records and messages, for both sides of the link."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privrec.errors import WireError

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.runtime import RuntimeHttpClient

KEY = "privrec"
# Flower must not parse the bytes: its own kind of array has a header in numpy's format.
STYPE = "privrec.bytes"

# The most bytes that are fetched of one reply, and pieces before the next reply's turn (by hand).
LARGEST_REPLY = 1 << 30
PIECES = 16


def to_record(content: bytes) -> "RecordDict":
    """Return a record of one array of bytes, which Flower sends in pieces if it is large."""
    from flwr.app import Array, ArrayRecord, RecordDict

    array = Array(dtype="uint8", shape=(len(content),), stype=STYPE, data=content)
    return RecordDict({KEY: ArrayRecord({KEY: array})})


def from_record(record: object) -> bytes:
    """Return the bytes of a record from `to_record`; anything else is a `WireError`."""
    from flwr.app import Array, ArrayRecord, RecordDict

    if not isinstance(record, RecordDict) or list(record) != [KEY]:
        raise WireError("a Flower message is not the record that privrec sends")
    arrays: object = record[KEY]
    if not isinstance(arrays, ArrayRecord) or list(arrays) != [KEY]:
        raise WireError("a Flower message does not have exactly one array")
    array: object = arrays[KEY]
    if not isinstance(array, Array) or (array.stype, array.dtype) != (STYPE, "uint8"):
        raise WireError("a Flower message's array does not hold bytes")
    content: object = array.data
    if not isinstance(content, bytes) or tuple(array.shape) != (len(content),):
        raise WireError("a Flower message's array has the wrong length")
    return content


@dataclass(eq=False)
class Reply:
    """The reply to one request, of which Flower delivers the head and then piece after piece.

    Flower's own function waits up to two hours for the pieces of a node that has died.
    """

    index: int
    node_id: int
    message_id: str
    head: str = ""
    missing: list[str] = field(default_factory=list)
    pieces: dict[str, bytes] = field(default_factory=dict)

    def fetch(self, client: "RuntimeHttpClient", run_id: int) -> "Message | None":
        """Return the message if it is complete, otherwise None; fetch more of it."""
        from flwr.app import Message
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.proto.node_pb2 import Node
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectUnavailableError,
            inflate_object_from_contents,
        )

        if not self.head:
            pulled = client.PullMessages(PullAppMessagesRequest(message_ids=[self.message_id]))
            if not pulled.messages_list:
                return None
            self.head = pulled.messages_list[0].metadata.message_id
            tree = iterate_object_tree(pulled.message_object_trees[0])
            self.missing = list(dict.fromkeys(part.object_id for part in tree))
        node = Node(node_id=SUPERLINK_NODE_ID)
        pull = make_pull_object_fn_protobuf(client.PullObject, node, run_id)
        for part in self.missing[:PIECES]:
            try:
                self.pieces[part] = pull(part)
            except ObjectUnavailableError:
                return None
            self.missing.remove(part)
        if _inflated_bytes(self.pieces) > LARGEST_REPLY:
            raise WireError(f"a reply has more than {LARGEST_REPLY:,} bytes")
        if self.missing:
            return None
        done = ConfirmMessageReceivedRequest(node=node, run_id=run_id, message_object_id=self.head)
        client.ConfirmMessageReceived(done)
        message = inflate_object_from_contents(self.head, self.pieces)
        if not isinstance(message, Message):
            raise WireError("a reply is no message of Flower")
        return message

    def content(self, message: "Message") -> bytes | None:
        """Return the bytes of a reply, or None if it is an error or not from the node asked."""
        metadata = message.metadata
        if (metadata.reply_to_message_id, metadata.src_node_id) != (self.message_id, self.node_id):
            return None
        return from_record(message.content) if message.has_content() else None


def _inflated_bytes(pieces: Mapping[str, bytes]) -> int:
    """Return how many bytes a message takes in memory, as far as its pieces are here.

    An array names its pieces in order. One that it names often is sent once, and copied each time.
    """
    from flwr.app import Array
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_children_ids_from_object_content,
        get_object_type_from_object_content,
    )

    total = sum(map(len, pieces.values()))
    for content in pieces.values():
        if get_object_type_from_object_content(content) == Array.__name__:
            ids = get_object_children_ids_from_object_content(content)
            order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(pieces.get(ids[place], b"")) for place in order)
    return total


def heartbeat(client: "RuntimeHttpClient") -> "HeartbeatSender":
    """Return a running thread that tells Flower that this client's task goes on.

    Flower's own function sends a SIGINT to this process if the task is gone.
    """
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
    from flwr.supercore.heartbeat import HeartbeatSender

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPStatusError:
            return True
        except (httpx.HTTPError, RuntimeError):
            return False
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    return sender
