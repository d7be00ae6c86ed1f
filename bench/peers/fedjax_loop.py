"""Peer of the speed benchmark: federated averaging with FedJAX.

It is FedJAX's own ``fed_avg`` put together from its public parts, with two of them exchanged so
that the job is the same for all engines:

* Batches come from ``ClientDataset.padded_batch``, once per epoch. ``shuffle_repeat_batch`` always
  yields full batches that run over the end of an epoch, hence other batches and fewer of them.
  Padding leaves one batch shape to compile and ``fedjax.grad`` masks it in the loss.
* Clients weigh the same in the mean. ``fed_avg.federated_averaging`` weighs them by their number
  of instances.

Run it as ``python fedjax_loop.py <workload.npz>``; ``worker.py`` describes the protocol.
"""

import argparse
import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from worker import Client, Workload, load_workload, serve

# FedJAX 0.0.17 calls this name in its tree_util, JAX has dropped it in 0.6.
jax.tree_map = jax.tree_util.tree_map

import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

Params = dict[str, jax.Array]
Batch = dict[str, jax.Array]


class FedAvg:
    """Federated averaging of the model of a workload."""

    def __init__(self, workload: Workload) -> None:
        """Sets up the training and compiles it.

        Args:
            workload: The workload.
        """
        self.workload = workload
        self.params = {name: jnp.asarray(value) for name, value in workload.params.items()}
        self.rng = jax.random.PRNGKey(0)
        item_genres = jnp.asarray(workload.item_genres)

        def loss(params: Params, batch: Batch, rng: jax.Array) -> jax.Array:
            del rng
            logit = score(params, batch, item_genres, workload.hidden_layers)
            return jax.nn.softplus(logit) - batch["target"] * logit

        self.train_for_each_client = fed_avg.create_train_for_each_client(
            fedjax.grad(loss), fedjax.optimizers.sgd(workload.learning_rate)
        )
        self.server_optimizer = fedjax.optimizers.sgd(1.0)
        self.server_state = self.server_optimizer.init(self.params)
        # One round trained and thrown away, so that the first one asked for compiles nothing.
        initial = self.params
        self.train_round(0)
        self.params = initial

    def train_round(self, round_index: int) -> Params:
        """Trains the cohort of a round and moves the global parameters by the mean delta.

        Args:
            round_index: Round to train.

        Returns:
            The mean delta, that is the mean update with its sign turned.
        """
        datasets = [to_dataset(client) for client in self.workload.clients(round_index)]
        self.rng, use_rng = jax.random.split(self.rng)
        keys = jax.random.split(use_rng, len(datasets))
        clients = [
            (i, batches(dataset, self.workload), keys[i]) for i, dataset in enumerate(datasets)
        ]
        # A delta is the negative of an update: a gradient for the server's optimizer.
        mean = fedjax.tree_util.tree_mean(
            (delta, 1.0) for _, delta in self.train_for_each_client(self.params, clients)
        )
        self.server_state, self.params = self.server_optimizer.apply(
            mean, self.server_state, self.params
        )
        return jax.block_until_ready((mean, self.params))[0]


def score(params: Params, batch: Batch, item_genres: jax.Array, hidden_layers: int) -> jax.Array:
    """Scores the instances of a batch.

    Args:
        params: Model parameters.
        batch: Columns ``user`` and ``item``.
        item_genres: Genre weights of each item.
        hidden_layers: Number of hidden layers on top of the towers.

    Returns:
        The logits, ``[batch]``.
    """
    user, item = batch["user"], batch["item"]
    users = [params[f"embed/user{i}"][user[:, i]] for i in range(user.shape[1])]
    items = [params["embed/item"][item], item_genres[item] @ params["embed/genres"]]
    u = jax.nn.relu(jnp.concatenate(users, axis=1) @ params["user/in"] + params["user/bias"])
    v = jax.nn.relu(jnp.concatenate(items, axis=1) @ params["item/in"] + params["item/bias"])
    x = jax.nn.relu(u @ params["mlp/0/user"] + v @ params["mlp/0/item"] + params["mlp/0/bias"])
    for i in range(1, hidden_layers):
        x = jax.nn.relu(x @ params[f"mlp/{i}/weight"] + params[f"mlp/{i}/bias"])
    return (x @ params["out/weight"] + params["out/bias"])[:, 0]


def to_dataset(client: Client) -> fedjax.ClientDataset:
    """Makes the table of examples that FedJAX trains a client on.

    Args:
        client: The client.

    Returns:
        The dataset, one row per instance.
    """
    user = np.broadcast_to(client.user, (len(client.item), len(client.user)))
    return fedjax.ClientDataset({"user": user, "item": client.item, "target": client.target})


def batches(dataset: fedjax.ClientDataset, workload: Workload) -> Iterator[dict[str, np.ndarray]]:
    """Cuts a dataset into batches, the same ones in every epoch.

    Args:
        dataset: The dataset.
        workload: The workload, for its training settings.

    Returns:
        The batches of all epochs.
    """
    epoch = dataset.padded_batch(batch_size=workload.batch_size)
    return itertools.chain.from_iterable(itertools.repeat(epoch, workload.epochs))


def checksum(delta: Params) -> float:
    """Sums an update over all parameters.

    Args:
        delta: The update with its sign turned.

    Returns:
        The sum of the update.
    """
    return -float(np.sum([np.asarray(value).sum(dtype=np.float64) for value in delta.values()]))


def main() -> None:
    """Runs the worker."""
    parser = argparse.ArgumentParser(description="FedJAX peer of the speed benchmark.")
    parser.add_argument("workload", help="workload file (.npz)")
    workload = load_workload(parser.parse_args().workload)
    serve(workload, FedAvg(workload).train_round, checksum)


if __name__ == "__main__":
    main()
