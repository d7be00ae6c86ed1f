"""The figures at `/metrics` of a federation's server, in the OpenMetrics format.

All figures are public or have noise: rounds, exchanges, nodes, bytes of replies, refusals by kind,
epsilon. The bytes of requests are left out, because with plain sums they would show how many nodes
have drawn people.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from privrec.errors import PrivrecError
from privrec.protocol.server import ServerStatus
from privrec.runs.folder import RunFolder, played_rounds
from privrec.runs.ledger import ledger_of

_KINDS = {
    "refused 400": "malformed",
    "refused 401": "no token",
    "refused 403": "not enrolled",
    "refused 408": "slow",
    "refused 409": "second stream",
    "refused 410": "late",
    "refused 411": "no length",
    "refused 413": "too large",
    "refused 503": "no memory",
}


class Counted(Protocol):
    """A function that reads a run's ledger."""

    def __call__(self) -> tuple[int, float]:
        """Return the number of rounds and the epsilon that they spent."""


@dataclass(slots=True)
class Spent:
    """The number of rounds of a run and their epsilon. It is computed again after a new round."""

    run: RunFolder
    delta: float
    rounds: int = -1
    epsilon: float = 0.0

    def __call__(self) -> tuple[int, float]:
        """Return the number of rounds and the epsilon that they spent."""
        try:
            played = played_rounds(self.run)
            if played != self.rounds:
                ledger = ledger_of(self.run)
                self.epsilon = ledger.epsilon(self.delta) if ledger.entries else 0.0
                self.rounds = played
        except PrivrecError:  # The files of a round are being written; the next call reads them.
            pass
        return max(self.rounds, 0), self.epsilon


def text(status: ServerStatus, counts: Mapping[str, int], members: int, spent: Counted) -> str:
    """Return the metrics in the OpenMetrics format. `counts` has the counters of the network."""
    collected = CollectorRegistry(auto_describe=False)
    collected.register(_Collector(status, Counter(counts), members, spent))
    return str(generate_latest(collected), "utf-8")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    """All metrics, in the form that `prometheus_client` needs."""

    status: ServerStatus
    counts: Counter[str]
    members: int
    spent: Counted

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        rounds, epsilon = self.spent()
        counts, status = self.counts, self.status
        yield _gauge("nodes_enrolled", "Nodes in the terms.", self.members)
        yield _gauge("nodes_online", "Nodes whose stream is open.", len(status.online))
        yield _gauge("rounds_published", "Rounds whose sum was published.", rounds)
        yield _gauge("epsilon", "Spent so far, against who sees the model.", epsilon)
        yield _gauge("running", "1 until the training is done.", float(status.step != "done"))
        yield _counter("exchanges", "Questions to all nodes of a round.", counts["exchanges"])
        yield _counter("rounds_abandoned", "Attempts that published nothing.", status.abandoned)
        yield _counter("received_bytes", "Bytes of replies.", counts["bytes in"])
        closed = counts["refused connections"]
        yield _counter("refused_connections", "Connections beyond the limits.", closed)
        refused = CounterMetricFamily(
            "privrec_refused", "Requests and replies that were refused.", labels=["kind"]
        )
        for name, kind in _KINDS.items():
            refused.add_metric([kind], counts[name])
        refused.add_metric(["by the protocol"], sum(dict(status.refused).values()))
        yield refused


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"privrec_{name}", what, value=value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"privrec_{name}", what, value=value)
