"""The ClientApp: a node of privrec that answers requests which come over Flower.

The secrets between two messages are in the state of Flower's context, in the SuperNode's memory.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from privrec.errors import FederationError
from privrec.transport.flower.app import NODE, NODES, node_folders
from privrec.transport.flower.node import answer, greet
from privrec.transport.flower.payload import content_of, record_of
from privrec.transport.run_node import locked

LOG = logging.getLogger("privrec.node")
_STATE = "privrec"
app = ClientApp()


def node_folder(context: Context) -> Path:
    """Return the folder of the node that a SuperNode, or a node of the simulation, serves."""
    if NODE in context.node_config:
        return Path(str(context.node_config[NODE]))
    nodes, number = context.run_config.get(NODES), context.node_config.get("partition-id")
    if not nodes or not isinstance(number, int):
        raise FederationError(f"`{NODE}` must be in the node config of this SuperNode")
    return node_folders(Path(str(nodes)))[number]


def _greet(message: Message, context: Context) -> Message:
    def work(path: Path) -> bytes:
        return greet(path, content_of(message))

    return _reply(message, context, work)


def _answer(message: Message, context: Context) -> Message:
    def work(path: Path) -> bytes:
        kept = context.state.config_records.get(_STATE, {})
        reply, after = answer(path, content_of(message), bytes(kept.get("state", b"")))
        context.state[_STATE] = ConfigRecord({"state": after})
        return reply

    return _reply(message, context, work)


def _reply(message: Message, context: Context, work: Callable[[Path], bytes]) -> Message:
    """Return the reply; an error tells the server no more than the name of its class."""
    try:
        path = node_folder(context)
        with locked(path):
            content = work(path)
    except Exception as error:
        LOG.exception("a message could not be answered")
        why = type(error).__name__
    else:
        return Message(RecordDict(record_of(content)), reply_to=message)
    raise FederationError(f"{why}; the log of the SuperNode has more")


app.query()(_greet)
app.train()(_answer)
