"""Peer of stage one's speed benchmark: a plain loop over the clients in PyTorch, on one thread.

One model, reloaded with the global parameters for each client, trained batch by batch with
``torch.optim.SGD`` on the two masked-view losses. Run it as ``torch_gru.py <views.npz>``: for
each line on standard input it trains all clients once and answers with seconds, steps and the sum
of the mean update.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

COLUMNS = ("masked", "truth", "pool", "torn", "segments")


class Encoders(nn.Module):
    """An item table, a GRU over sequences and a feed-forward encoder of items."""

    def __init__(self, params: dict[str, Tensor]) -> None:
        """Builds the encoders with given parameters."""
        super().__init__()
        size = params["embed/item"].shape[1]
        self.item = nn.Embedding.from_pretrained(params["embed/item"].clone(), freeze=False)
        self.gru = nn.GRU(size, size, batch_first=True)
        self.encode = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        with torch.no_grad():
            self.gru.weight_ih_l0.copy_(params["gru/in"].T)
            self.gru.weight_hh_l0.copy_(params["gru/state"].T)
            self.gru.bias_ih_l0.copy_(params["gru/bias"])
            self.gru.bias_hh_l0.zero_()
            for place, name in ((0, "encode/0"), (2, "encode/1")):
                self.encode[place].weight.copy_(params[f"{name}/weight"].T)
                self.encode[place].bias.copy_(params[f"{name}/bias"])
        # Our GRU has one bias; the second stays at zero.
        self.gru.bias_hh_l0.requires_grad_(False)

    def sequences(self, items: Tensor) -> Tensor:
        """Returns the last state of each sequence."""
        return self.gru(self.item(items))[1][0]

    def loss(self, batch: dict[str, Tensor], segment_weight: float) -> Tensor:
        """Returns L_IM + λ_SM · L_SM of a batch."""
        target = torch.zeros(len(batch["truth"]), dtype=torch.long)
        state = self.sequences(batch["masked"])
        true = (state * self.encode(self.item(batch["truth"]))).sum(1, keepdim=True)
        false = state @ self.encode(self.item(batch["pool"])).T
        items = cross_entropy(torch.cat([true, false], 1), target)
        n, several, span = batch["segments"].shape
        encoded = self.sequences(batch["segments"].reshape(n * several, span))
        state = self.sequences(batch["torn"])
        scores = torch.einsum("nh,nkh->nk", state, encoded.reshape(n, several, -1))
        return items + segment_weight * cross_entropy(scores, target)


def main(path: str) -> None:
    """Answers until standard input ends."""
    torch.set_num_threads(1)
    file = np.load(path)
    params = {k[6:]: torch.tensor(file[k]) for k in file.files if k.startswith("param/")}
    batch_size, rate = int(file["batch_size"]), float(file["learning_rate"])
    segment_weight = float(file["segment_weight"])
    clients = [
        {name: torch.tensor(file[f"{name}/{k}"], dtype=torch.long) for name in COLUMNS}
        for k in range(int(file["clients"]))
    ]
    start = Encoders(params).state_dict()
    model = Encoders(params)

    def train() -> tuple[int, float]:
        steps, total = 0, 0.0
        for client in clients:
            model.load_state_dict(start)
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
            for begin in range(0, len(client["truth"]), batch_size):
                batch = {
                    k: v if k == "pool" else v[begin : begin + batch_size]
                    for k, v in client.items()
                }
                optimizer.zero_grad()
                model.loss(batch, segment_weight).backward()
                optimizer.step()
                steps += 1
            after = model.state_dict()
            total += sum(float((after[k] - start[k]).sum()) for k in start)
        return steps, total / len(clients)

    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        steps, checksum = train()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "steps": steps, "checksum": checksum}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
