"""The figures that `privrec data describe` prints."""

from typing import Any

import numpy as np

from privrec.data.federation import chunks
from privrec.data.sources import load


def describe_data(data: str) -> dict[str, Any]:
    """Return counts of people, items, interactions and likes, and the features.

    It reads all people, about a thousand at a time.
    """
    federation = load(data)
    sizes: list[np.ndarray] = []
    liked = tested = 0
    for part in chunks(np.arange(federation.n_clients)):
        clients = federation.take(part)
        sizes.append(clients.sizes)
        liked += int(clients.liked.sum())
        tested += 0 if federation.take_test is None else len(federation.take_test(part).item)
    counts = np.concatenate(sizes)
    return {
        "name": federation.name,
        "people": federation.n_clients,
        "items": federation.n_items,
        "interactions": int(counts.sum()),
        "likes": liked,
        **({} if federation.take_test is None else {"interactions in the test file": tested}),
        "a value is a like above": federation.catalogue.positive_above,
        "interactions per person, median": float(np.median(counts)),
        "interactions per person, largest": int(counts.max()),
        "people return to the same item": federation.repeats,
        "lines have a time": federation.has_times,
        "not declared public": list(federation.catalogue.undeclared),
        "features": [
            {"name": f.name, "side": f.side, "kind": f.kind, "values": f.rows}
            for f in federation.schema.features
        ],
    }
