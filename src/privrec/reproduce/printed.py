"""What the paper prints beside Hits: nDCG, and its sentences on figures, whose numbers it hides.

Its figures are pictures without numbers, so what can be compared with them is what it says of them.
"""

import math
from collections.abc import Mapping

from privrec.privacy.paper import PRINTED_HITS

PRINTED_NDCG: dict[str, dict[str, dict[str, float]]] = {
    "movielens-1m": {
        "FCF": {"5": 0.088, "10": 0.118, "20": 0.155, "30": 0.195},
        "NN-SELF": {"5": 0.098, "10": 0.124, "20": 0.162, "30": 0.201},
        "FOFL-SELF": {"5": 0.101, "10": 0.130, "20": 0.169, "30": 0.207},
        "FedGNN": {"5": 0.109, "10": 0.137, "20": 0.174, "30": 0.218},
        "PrivRec": {"5": 0.114, "10": 0.141, "20": 0.189, "30": 0.233},
        "PrivRec-CEN": {"5": 0.125, "10": 0.152, "20": 0.206, "30": 0.258},
        "NCF, centralised": {"5": 0.152, "10": 0.186, "20": 0.250, "30": 0.307},
    },
    "frappe": {
        "FCF": {"5": 0.469, "10": 0.544, "20": 0.591, "30": 0.612},
        "NN-SELF": {"5": 0.472, "10": 0.550, "20": 0.595, "30": 0.616},
        "FOFL-SELF": {"5": 0.479, "10": 0.554, "20": 0.600, "30": 0.621},
        "FedGNN": {"5": 0.486, "10": 0.563, "20": 0.617, "30": 0.631},
        "PrivRec": {"5": 0.495, "10": 0.570, "20": 0.621, "30": 0.636},
        "PrivRec-CEN": {"5": 0.501, "10": 0.574, "20": 0.632, "30": 0.651},
        "NCF, centralised": {"5": 0.547, "10": 0.612, "20": 0.663, "30": 0.698},
    },
}


def most_ndcg(hits: Mapping[str, float], k: int) -> float:
    """Return the largest nDCG@k that these Hits@k allow: every hit as high as it can be.

    A list has one relevant item, so a hit at rank r gives 1 / log2(r + 1). What is hit in the first
    5 can stand at rank 1, what is hit in the first 10 but not in 5 at rank 6, and so on.

    >>> round(most_ndcg({"5": 0.131, "10": 0.168, "20": 0.217, "30": 0.269}, 30), 3)
    0.17
    """
    total, before, rank = 0.0, 0.0, 1
    for name in sorted(hits, key=int):
        if int(name) <= k:
            total += max(hits[name] - before, 0.0) / math.log2(rank + 1)
            before, rank = max(hits[name], before), int(name) + 1
    return total


def impossible_ndcg() -> tuple[int, int]:
    """Return how many printed nDCG are more than their Hits allow by rounding, and how many are."""
    cells = [
        printed - most_ndcg(PRINTED_HITS[data][system], int(k))
        for data, systems in PRINTED_NDCG.items()
        for system, by_k in systems.items()
        for k, printed in by_k.items()
    ]
    return sum(over > 0.0015 for over in cells), len(cells)
