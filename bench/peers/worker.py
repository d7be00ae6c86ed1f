"""What every peer shares: the workload file and the line protocol of a worker.

A peer is a process that the benchmark drives one round at a time, so that several engines can
take turns on the same machine. It is started with the path of a workload, prints
``ready {"params": <count>}`` once it is set up, then answers each line ``<round index>`` on
standard input with one line ``{"seconds": ..., "steps": ..., "checksum": ...}``, until the end
of input.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

PARAM_PREFIX = "param/"


@dataclass(frozen=True)
class Client:
    """The data of one client, instances in training order.

    Attributes:
        user: Codes of the categorical user features, ``[n_features]``.
        item: Item of each instance, ``[n]``.
        target: Target of each instance, ``[n]``.
    """

    user: np.ndarray
    item: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Workload:
    """A fixed training job: settings, initial parameters and the cohorts of every round.

    Attributes:
        batch_size: Instances in a batch; the last batch of a client may be shorter.
        epochs: Passes of a client over its own batches.
        learning_rate: Step size of the clients' SGD.
        item_genres: Genre weights of each item, ``[n_items, n_genres]``.
        params: Initial parameters by name.
        cohort: Clients in a round.
        client_offsets: Where the instances of each client start and end.
        user_codes: User features of each client, ``[n_clients, n_features]``.
        item: Items of all clients' instances, one client after another.
        target: Targets of the same instances.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    item_genres: np.ndarray
    params: dict[str, np.ndarray]
    cohort: int
    client_offsets: np.ndarray
    user_codes: np.ndarray
    item: np.ndarray
    target: np.ndarray

    @property
    def user_features(self) -> int:
        """Number of categorical user features."""
        return self.user_codes.shape[1]

    @property
    def hidden_layers(self) -> int:
        """Number of hidden layers of the network on top of the towers."""
        return sum(name.startswith("mlp/") and name.endswith("/bias") for name in self.params)

    def clients(self, round_index: int) -> Iterator[Client]:
        """Yields the clients of one round.

        Args:
            round_index: Round to look up.

        Yields:
            The clients, as views of the flat arrays.
        """
        first = round_index * self.cohort
        for k in range(first, first + self.cohort):
            part = slice(self.client_offsets[k], self.client_offsets[k + 1])
            yield Client(self.user_codes[k], self.item[part], self.target[part])

    def steps(self, round_index: int) -> int:
        """Counts the SGD steps of all clients of one round.

        Args:
            round_index: Round to look up.

        Returns:
            The number of steps.
        """
        first = round_index * self.cohort
        sizes = np.diff(self.client_offsets[first : first + self.cohort + 1])
        return int(self.epochs * np.sum(-(-sizes // self.batch_size)))


def load_workload(path: str) -> Workload:
    """Reads a workload.

    Args:
        path: The ``.npz`` file.

    Returns:
        The workload.
    """
    with np.load(path) as file:
        return Workload(
            batch_size=int(file["batch_size"]),
            epochs=int(file["epochs"]),
            learning_rate=float(file["learning_rate"]),
            item_genres=file["item_genres"],
            params={
                name.removeprefix(PARAM_PREFIX): file[name]
                for name in file.files
                if name.startswith(PARAM_PREFIX)
            },
            cohort=int(file["cohort"]),
            client_offsets=file["client_offsets"],
            user_codes=file["user_codes"],
            item=file["item"],
            target=file["target"],
        )


def serve(
    workload: Workload,
    train_round: Callable[[int], object],
    checksum: Callable[[object], float],
) -> None:
    """Answers the rounds asked for on standard input until it ends.

    Only ``train_round`` is timed. It must return after all of its work is done.

    Args:
        workload: The workload the rounds belong to.
        train_round: Trains the cohort of a round, updates the global parameters and returns the
            mean update.
        checksum: Sums a mean update over all parameters.
    """
    count = sum(value.size for value in workload.params.values())
    print("ready", json.dumps({"params": count}), flush=True)
    for line in sys.stdin:
        round_index = int(line)
        start = time.perf_counter()
        update = train_round(round_index)
        seconds = time.perf_counter() - start
        answer = {
            "seconds": seconds,
            "steps": workload.steps(round_index),
            "checksum": checksum(update),
        }
        print(json.dumps(answer), flush=True)
