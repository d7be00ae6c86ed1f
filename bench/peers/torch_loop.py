"""Peer of the speed benchmark: a plain loop over the clients in PyTorch, on one thread.

This is the loop of most federated research code: one model, reloaded with the global parameters
for each client, trained batch by batch with ``torch.optim.SGD``. Run it as
``python torch_loop.py <workload.npz>``; ``worker.py`` describes the protocol.

With ``--sparse`` the item embedding is made with ``sparse=True``, so that a step touches only the
rows of its batch instead of the whole table. The option is off by default, as it is in PyTorch.
"""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from worker import Client, Workload, load_workload, serve

State = dict[str, Tensor]


class Dssm(nn.Module):
    """Two towers, one for the user and one for the item, under a feed-forward network."""

    def __init__(self, workload: Workload, sparse: bool) -> None:
        """Builds the model with the initial parameters of a workload.

        Args:
            workload: The workload.
            sparse: Whether the item embedding has sparse gradients.
        """
        super().__init__()
        params = {name: torch.tensor(value) for name, value in workload.params.items()}
        self.item = nn.Embedding.from_pretrained(params["embed/item"], freeze=False, sparse=sparse)
        self.genres = nn.Parameter(params["embed/genres"])
        self.user = nn.ModuleList(
            nn.Embedding.from_pretrained(params[f"embed/user{i}"], freeze=False)
            for i in range(workload.user_features)
        )
        self.user_tower = linear(params["user/in"], params["user/bias"])
        self.item_tower = linear(params["item/in"], params["item/bias"])
        first = torch.cat([params["mlp/0/user"], params["mlp/0/item"]])
        layers = [linear(first, params["mlp/0/bias"]), nn.ReLU()]
        for i in range(1, workload.hidden_layers):
            layers += [linear(params[f"mlp/{i}/weight"], params[f"mlp/{i}/bias"]), nn.ReLU()]
        layers.append(linear(params["out/weight"], params["out/bias"]))
        self.mlp = nn.Sequential(*layers)
        self.register_buffer(
            "item_genres", torch.from_numpy(workload.item_genres), persistent=False
        )

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Scores the instances of a batch.

        Args:
            user: User feature codes, ``[batch, n_features]``.
            item: Items, ``[batch]``.

        Returns:
            The logits, ``[batch]``.
        """
        users = [table(user[:, i]) for i, table in enumerate(self.user)]
        items = [self.item(item), self.item_genres[item] @ self.genres]
        u = torch.relu(self.user_tower(torch.cat(users, dim=1)))
        v = torch.relu(self.item_tower(torch.cat(items, dim=1)))
        return self.mlp(torch.cat([u, v], dim=1)).squeeze(1)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Makes a linear layer from given values.

    Args:
        weight: Weights, ``[inputs, outputs]``.
        bias: Biases, ``[outputs]``.

    Returns:
        The layer.
    """
    layer = nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    return layer


def copy_state(model: nn.Module) -> State:
    """Copies the parameters of a model.

    Args:
        model: The model.

    Returns:
        The copies by name.
    """
    return {name: value.clone() for name, value in model.state_dict().items()}


def train_client(model: Dssm, client: Client, workload: Workload) -> None:
    """Trains the model on one client, in place.

    Args:
        model: The model, loaded with the global parameters.
        client: The client.
        workload: The workload, for its training settings.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.learning_rate)
    loss_fn = nn.BCEWithLogitsLoss()
    item = torch.from_numpy(client.item).long()
    target = torch.from_numpy(client.target)
    user = torch.from_numpy(client.user).long().expand(len(item), -1)
    for _ in range(workload.epochs):
        for start in range(0, len(item), workload.batch_size):
            batch = slice(start, start + workload.batch_size)
            optimizer.zero_grad()
            loss = loss_fn(model(user[batch], item[batch]), target[batch])
            loss.backward()
            optimizer.step()


def train_round(model: Dssm, state: State, workload: Workload, round_index: int) -> State:
    """Trains the cohort of a round and adds its mean update to the global parameters.

    Args:
        model: A model to train the clients with; its own parameters are overwritten.
        state: The global parameters, updated in place.
        workload: The workload.
        round_index: Round to train.

    Returns:
        The mean update.
    """
    mean = {name: torch.zeros_like(value) for name, value in state.items()}
    for client in workload.clients(round_index):
        model.load_state_dict(state)
        train_client(model, client, workload)
        for name, value in model.state_dict().items():
            mean[name] += (value - state[name]) / workload.cohort
    for name, value in mean.items():
        state[name] += value
    return mean


def checksum(update: State) -> float:
    """Sums an update over all parameters.

    Args:
        update: The update.

    Returns:
        The sum.
    """
    return float(np.sum([value.double().sum().item() for value in update.values()]))


def main() -> None:
    """Runs the worker."""
    parser = argparse.ArgumentParser(description="Plain PyTorch peer of the speed benchmark.")
    parser.add_argument("workload", help="workload file (.npz)")
    parser.add_argument("--sparse", action="store_true", help="sparse item embedding gradients")
    args = parser.parse_args()
    torch.set_num_threads(1)
    workload = load_workload(args.workload)
    model = Dssm(workload, args.sparse)
    state = copy_state(model)
    # One client trained and thrown away, so that the first round pays no one-off costs.
    train_client(model, next(workload.clients(0)), workload)
    serve(workload, lambda index: train_round(model, state, workload, index), checksum)


if __name__ == "__main__":
    main()
