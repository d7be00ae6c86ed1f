"""Bytes in Flower's messages: the same bytes that travel over HTTPS."""

from flwr.app import Array, ArrayRecord, Message

_NAME = "privrec"


def record_of(content: bytes) -> dict[str, ArrayRecord]:
    """Return the content of a message with these bytes. Flower sends arrays in pieces."""
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return {_NAME: ArrayRecord({_NAME: array})}


def content_of(message: Message) -> bytes:
    """Return the bytes of a message, or b"" if there are none."""
    record = message.content.array_records.get(_NAME) if message.has_content() else None
    array = None if record is None else record.get(_NAME)
    return b"" if array is None else bytes(array.data)
