"""Peer of the MAML benchmark: second-order MAML in PyTorch, one client after another, one thread.

The meta-gradient is ``torch.func.grad`` of a function that itself takes a step along
``torch.func.grad``, with ``functional_call`` on the model of ``torch_loop.py``. Run it as
``python torch_maml.py <workload.npz>``; ``worker.py`` describes the protocol. The workload also has
``support``: how many of each client's instances, from the first on, are its support.
"""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch_loop import Dssm, State, checksum
from worker import Client, Workload, load_workload, serve


def meta_gradient(
    model: Dssm, state: State, client: Client, support: int, learning_rate: float
) -> State:
    """Differentiates the loss on the query, after one step on the support, by the start.

    Args:
        model: The model; only its structure is used.
        state: The global parameters.
        client: The client, its support first.
        support: The size of the support.
        learning_rate: The size of the step.

    Returns:
        The gradient by parameter name.
    """
    loss_fn = nn.BCEWithLogitsLoss()
    item = torch.from_numpy(client.item).long()
    target = torch.from_numpy(client.target)
    user = torch.from_numpy(client.user).long().expand(len(item), -1)

    def loss(params: State, part: slice) -> Tensor:
        return loss_fn(functional_call(model, params, (user[part], item[part])), target[part])

    def adapted_loss(params: State) -> Tensor:
        slope = grad(loss)(params, slice(0, support))
        own = {name: value - learning_rate * slope[name] for name, value in params.items()}
        return loss(own, slice(support, None))

    return grad(adapted_loss)(state)


def train_round(
    model: Dssm, state: State, workload: Workload, index: int, sizes: np.ndarray
) -> State:
    """Adds the mean of the clients' negative meta-gradients to the global parameters.

    Args:
        model: The model.
        state: The global parameters, updated in place.
        workload: The workload.
        index: Number of the round.
        sizes: The size of every client's support.

    Returns:
        The mean update.
    """
    mean = {name: torch.zeros_like(value) for name, value in state.items()}
    clients = workload.clients(index)
    for client, support in zip(clients, sizes[index * workload.cohort :], strict=False):
        if len(client.item) == 0:
            continue
        found = meta_gradient(model, state, client, int(support), workload.learning_rate)
        for name, value in found.items():
            mean[name] -= value / workload.cohort
    for name, value in mean.items():
        state[name] += value
    return mean


def main() -> None:
    """Runs the worker."""
    parser = argparse.ArgumentParser(description="PyTorch peer of the MAML benchmark.")
    parser.add_argument("workload", help="workload file (.npz)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    workload = load_workload(args.workload)
    with np.load(args.workload) as file:
        sizes = file["support"]
    model = Dssm(workload, sparse=False)
    state = {name: value.detach().clone() for name, value in model.named_parameters()}
    # One client computed and thrown away, so that the first round pays no one-off costs.
    client = next(workload.clients(0))
    meta_gradient(model, state, client, int(sizes[0]), workload.learning_rate)
    serve(workload, lambda r: train_round(model, state, workload, r, sizes), checksum)


if __name__ == "__main__":
    main()
