"""MAML on the DSSM: what a device sends is the gradient at the end of its own adaptation."""

from functools import lru_cache

from privrec.algorithms.reptile.batch import (
    Span,
    own_of,
    start_of,
    to_send,
    whole_bend,
    whole_slope,
)
from privrec.algorithms.reptile.packed import PackedTask
from privrec.core.local import LocalResult, LocalTrain
from privrec.data.schema import Bags
from privrec.models.api import Recommender
from privrec.types import Array, Params


@lru_cache(maxsize=16)
def local_maml(
    recommender: Recommender,
    *,
    learning_rate: float,
    inner_steps: int,
    batch_size: int,
    second_order: bool,
) -> LocalTrain:
    """Return the meta-gradient of one client, with its sign changed.

        θ_j+1 = θ_j - α ∇L_support(θ_j),   update = -∇_θ0 L_query(θ_k),   k = inner_steps

    With v_k = ∇L_query(θ_k), the chain rule gives v_j = v_j+1 - α H_j v_j+1, where H_j is the
    second derivative of L_support at θ_j; the update is -v_0. The first-order variant takes H as 0.
    Losses are means over all instances of their part, `batch_size` of which are computed at a time.
    """

    def moved(start: Params, slope: Params) -> dict[str, Array]:
        return {name: start[name] - learning_rate * slope[name] for name in start}

    def local(params: Params, catalogue: Bags, task: PackedTask) -> LocalResult:
        client, own = task.client, own_of(params, catalogue, task.client)
        support = Span(client, own, 0, task.support, batch_size)
        query = Span(client, own, task.begin, task.end, batch_size)
        path = [start_of(params, client)]
        for _ in range(inner_steps):
            path.append(moved(path[-1], whole_slope(recommender, path[-1], support)[1]))
        loss, back = whole_slope(recommender, path[-1], query)
        if second_order:
            for before in reversed(path[:-1]):
                back = moved(back, whole_bend(recommender, before, support, back))
        update = {name: -value for name, value in back.items()}
        return LocalResult(update=to_send(update, params, client), loss=loss)

    return local
