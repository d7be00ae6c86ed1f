"""The paper's tables and figures by name: their parts, and sentences about their numbers.

A `Line` is a row of a panel, or one point of a row, with the part that computes it for each seed.
An experiment has the parts of its lines, and reads its numbers from finished parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from privrec.privacy.paper import PRINTED_ATTACKS, PRINTED_EPSILONS, PRINTED_HITS
from privrec.reproduce import agreement
from privrec.reproduce.agreement import PRINTED_NDCG
from privrec.reproduce.cell import FRAPPE, MOVIELENS, Cell, Scale, Settings
from privrec.reproduce.results import Number

K = "20"
BUDGETS = (1.0, 2.0, 4.0, 8.0, 16.0, 40.0)
SYSTEMS = {
    "NCF, centralised": "ncf",
    "FCF": "fcf",
    "NN-SELF": "nn-self",
    "FOFL-SELF": "fofl-self",
    "FedGNN": "fedgnn",
    "PrivRec-CEN": "privrec-cen",
    "PrivRec": "privrec",
}
"""Our recipes for the systems in the paper's tables."""
_REFERENCES = ("popularity", "own-items", "item-knn", "ease")
_PAPER_STAGE_ONE: Settings = {"stage1": "paper", "stage1_rounds": 200, "stage1_cohort": 100}
_AXES: Mapping[str, tuple[str, Sequence[int]]] = {
    "rounds": ("E1, rounds", (5, 20, 40, 60, 80, 100)),
    "local_epochs": ("E2, local epochs", (5, 20, 40, 60, 80, 100, 120)),
    "cohort": ("M, people in a round", (2, 5, 10, 15, 20, 25, 30, 35, 40)),
}
_OURS_ROUNDS = {"rounds": {}, "local_epochs": {"rounds": 20}, "cohort": {"rounds": 100}}
"""Settings for the rows “our settings”, by axis: fewer than the usual 1,000 rounds of one epoch,
because a round takes longer on these axes."""
_PAPER_NOISE: Settings = {
    **{"rounds": 80, "cohort": 30, "sampling": "fixed", "local_epochs": 100, "local_lr": 0.05},
    **{"server_optimizer": "plain", "server_lr": 1.0, "negatives": 2, "dislike_target": 0.0},
    **{"adapt_epochs": 100, "adapt_lr": 0.05, "adapt_negatives": 2, "noise_multiplier": 1.0},
    **{"embedding_size": 64, "tower_size": 64, "hidden": (64, 64, 64, 64)},
}
"""The paper's settings of DP-PrivRec-One. Its clipping bound S depends on the data set."""
_PAPER_BOUND = {MOVIELENS: 40.0, FRAPPE: 35.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of a panel, or one point of it in a `column`, with a part (`cells`) for each seed.

    `read` is the figure that is read from the parts. `printed` has the paper's numbers by column.
    """

    panel: str
    row: str
    cells: tuple[Cell, ...]
    read: str = "hits"
    column: str = ""
    printed: Mapping[str, float] = field(default_factory=dict)


Lines = Iterator[Line]
Sentences = Iterator[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A table or figure of the paper. `sentences(panel, numbers)` makes comparing sentences."""

    title: str
    says: str
    data: tuple[str, ...]
    lines: Callable[[Scale, str], Lines]
    sentences: Callable[[str, Sequence[Number]], Sentences]
    x_label: str = "k"
    y_label: str = "Hits@20"
    logs: str = ""
    decimals: int = 3
    needs_data: bool = True
    notes: tuple[str, ...] = ()


def _table(scale: Scale, data: str) -> Lines:
    of = scale.sources[data].of
    runs = {name: scale.runs(recipe, data) for name, recipe in SYSTEMS.items()}
    more = {"PrivRec, the paper's settings": scale.runs("privrec-paper", data)}
    more |= {name: scale.runs(name, data) for name in ("privrec-plus", *_REFERENCES)}
    for recipe in ("dp-privrec-plus", "dpals"):
        for epsilon in scale.axis("epsilon", (8.0, 2.0, 1.0)):
            more[f"{recipe}, ε = {epsilon:g}"] = scale.runs(recipe, data, epsilon=float(epsilon))
    for read, printed in (("hits", PRINTED_HITS), ("ndcg", PRINTED_NDCG)):
        panel = f"{scale.sources[data].title}, {'Hits' if read == 'hits' else 'nDCG'}@k"
        for name, cells in {**runs, **more}.items():
            known = printed.get(of, {}).get(name, {})
            yield Line(panel=panel, row=name, cells=cells, read=read, printed=known)


def _about_table(panel: str, numbers: Sequence[Number]) -> Sentences:
    if not panel.endswith("Hits@k"):
        return
    at_20 = [number for number in numbers if number.column == K]
    yield from (agreement.beside_printed(number) for number in at_20)
    if order := agreement.order_of(at_20):
        yield f"Of the systems that the paper has, {order} at 20"
    plus, best = agreement.of(at_20, "privrec-plus"), agreement.of(at_20, "NCF, centralised")
    yield agreement.compared(plus, best)
    for epsilon in ("8", "2", "1"):
        private, before = (agreement.of(at_20, f"{n}, ε = {epsilon}") for n in _NOISED)
        yield agreement.compared(private, before)


_NOISED = ("dp-privrec-plus", "dpals")


def _fl_parameters(scale: Scale, data: str) -> Lines:
    for key, (label, values) in _AXES.items():
        panel = f"{scale.sources[data].title}, {label}"
        ours: Settings = {} if scale.is_quick else _OURS_ROUNDS[key]
        for value in scale.axis(key, values):
            for row, recipe, fixed in (
                ("the paper's settings", "privrec-paper", {}),
                ("our settings", "privrec", ours),
            ):
                (cell, *_) = scale.runs(recipe, data, axis=key, **{**fixed, key: value})
                yield Line(panel=panel, row=row, cells=(cell,), read="hits@20", column=str(value))


def _about_parameters(panel: str, numbers: Sequence[Number]) -> Sentences:
    yield from (agreement.rise(numbers, row) for row in ("the paper's settings", "our settings"))
    start, claim = next((start, claim) for name, start, claim in _STABLE if name in panel)
    yield agreement.claim(claim, agreement.is_flat(numbers, "the paper's settings", start))


_STABLE = (
    ("E1", 40, "over 40 rounds the performance tends to remain stable"),
    ("E2", 100, "it remains stable when E2 reaches 100"),
    ("M,", 25, "it is ideal to set M > 25"),
)


def _dp_hits(scale: Scale, data: str) -> Lines:
    of = scale.sources[data].of
    printed = PRINTED_HITS.get(of, {}).get("PrivRec", {})
    small: Settings = {**_PAPER_NOISE, "clip_norm": _PAPER_BOUND.get(of, 40.0)}
    one, two = "dp-privrec-one", "dp-privrec"
    rows = {
        "PrivRec": scale.runs("privrec", data),
        "DP-PrivRec-One, ε = 8": scale.runs(one, data),
        "DP-PrivRec, stage one without noise": scale.runs(two, data, **_PAPER_STAGE_ONE),
        "DP-PrivRec, ε = 8 end to end": scale.runs(two, data),
        "DP-PrivRec-One, the paper's M, S and z": scale.runs(one, data, **small),
        "popularity": scale.runs("popularity", data),
    }
    for row, cells in rows.items():
        known = printed if row == "PrivRec" else {}
        panel = f"{scale.sources[data].title}, Hits@k"
        yield Line(panel=panel, row=row, cells=cells, printed=known)


def _about_dp(panel: str, numbers: Sequence[Number]) -> Sentences:
    at_20 = [number for number in numbers if number.column == K]
    # In the order of the rows in `_dp_hits`.
    plain, one_stage, two_stages, end_to_end, paper_noise, popularity = (
        agreement.of(at_20, row) for row in dict.fromkeys(number.row for number in at_20)
    )
    gap = agreement.share(two_stages, plain)
    within = None if gap is None else gap >= 0.9
    yield agreement.claim("the gap between DP-PrivRec and PrivRec is within 10 %", within)
    ratio = agreement.share(two_stages, one_stage)
    better = None if ratio is None else ratio > 1
    yield agreement.claim("DP-PrivRec consistently outperforms DP-PrivRec-One", better)
    yield agreement.compared(two_stages, one_stage)
    yield agreement.compared(end_to_end, one_stage)
    yield agreement.compared(paper_noise, popularity)


def _epsilon_tables(scale: Scale, data: str) -> Lines:
    of = scale.sources[data].of
    for delta in (1e-8, 1e-6, 1e-4):
        for way, row in _WAYS.items():
            for cohort, by_delta in PRINTED_EPSILONS.get(of, {}).items():
                cell = Cell(kind="epsilons", source=scale.sources[data], asked={"cohort": cohort})
                yield Line(
                    panel=f"{of}, δ = {delta:g}",
                    row=row,
                    cells=(cell,),
                    read=f"{way} {delta:g}",
                    column=str(cohort),
                    printed={str(cohort): by_delta[delta]} if way == "per_client" else {},
                )


_WAYS = {
    "per_client": "composed per client",
    "per_round": "composed per round",
    "rdp": "ours, by RDP",
    "tight": "ours, tight",
    "poisson_half": "ours, Poisson cohorts, noise S",
}


def _about_epsilons(panel: str, numbers: Sequence[Number]) -> Sentences:
    same, cells = agreement.same_as_printed(numbers)
    yield f"Composed once per client, {same} of {cells} cells are the printed ones"
    printed = [number.printed for number in numbers if number.printed]
    tight = [n.value for n in numbers if n.row == _WAYS["tight"] and n.value]
    if printed and len(printed) == len(tight):
        times = [theirs / ours for theirs, ours in zip(printed, tight, strict=True)]
        yield f"The printed ε is {min(times):.1f} to {max(times):.1f} times the tight one"


def _budget(scale: Scale, data: str) -> Lines:
    panel = f"{scale.sources[data].title}, Hits@20"
    for row, recipe in (("DP-PrivRec", "dp-privrec"), ("dp-privrec-plus", "dp-privrec-plus")):
        for epsilon in scale.axis("epsilon", BUDGETS):
            cells = scale.runs(recipe, data, epsilon=float(epsilon))
            yield Line(panel=panel, row=row, cells=cells, read="hits@20", column=f"{epsilon:g}")
    for row, recipe in (("PrivRec", "privrec"), ("privrec-plus", "privrec-plus")):
        cells = scale.runs(recipe, data)
        yield Line(panel=panel, row=row, cells=cells, read="hits@20", column="no noise")


def _about_budget(panel: str, numbers: Sequence[Number]) -> Sentences:
    level = agreement.of(numbers, "PrivRec")
    for row in ("DP-PrivRec", "dp-privrec-plus"):
        yield agreement.rise(numbers, row)
        in_row = [number for number in numbers if number.row == row]
        ratios = [agreement.share(number, level) for number in in_row]
        known = [ratio for ratio in ratios if ratio is not None]
        if row == "DP-PrivRec" and known:
            yield agreement.claim("PrivRec can serve as an upper bound", max(known) <= 1)
            yield agreement.claim("more ε, more accuracy", known[-1] > known[0])
        elif known and level is not None:
            pairs = zip(in_row, ratios, strict=True)
            above = [number.column for number, ratio in pairs if (ratio or 0) > 1]
            yield f"{row} is above PrivRec at ε = {', '.join(above) if above else 'none of these'}"


def _personalisation(scale: Scale, data: str) -> Lines:
    panel = f"{scale.sources[data].title}, people with fewer than 20 items"
    rows = {"PrivRec": "privrec", "PrivRec-SGD": "privrec-sgd", "popularity": "popularity"}
    for row, recipe in rows.items():
        cells = scale.runs(recipe, data)
        yield Line(panel=panel, row=row, cells=cells, read="few")


def _about_people(panel: str, numbers: Sequence[Number]) -> Sentences:
    ours, other = (agreement.of(numbers, row, K) for row in ("PrivRec", "PrivRec-SGD"))
    yield agreement.compared(ours, other)
    times = agreement.share(ours, other)
    if times is not None:
        within = 1.2 <= times <= 1.4
        yield f"PrivRec is {100 * (times - 1):.0f} % better than PrivRec-SGD here"
        yield agreement.claim("PrivRec outperforms PrivRec-SGD by 20 % - 40 %", within)


def _meta_cost(scale: Scale, data: str) -> Lines:
    panel = f"{scale.sources[data].title}, milliseconds of a round"
    for cohort in scale.axis("cohort", (5, 10, 20, 30, 40)):
        rounds = 2 if scale.is_quick else 11
        cell = Cell(
            kind="rounds",
            source=scale.sources[data],
            recipe="nn-self",
            asked={"cohort": cohort, "rounds": rounds},
        )
        for row in ("Reptile", "Reptile, one step", "MAML, first order", "MAML, second order"):
            yield Line(panel=panel, row=row, cells=(cell,), read=f"ms {row}", column=str(cohort))


def _about_cost(panel: str, numbers: Sequence[Number]) -> Sentences:
    for other in ("Reptile", "Reptile, one step", "MAML, first order"):
        times = [
            agreement.share(number, agreement.of(numbers, other, number.column))
            for number in numbers
            if number.row == "MAML, second order"
        ]
        more = [100 * (factor - 1) for factor in times if factor is not None]
        if not more:
            continue
        shown = f"{min(more):.0f} to {max(more):.0f} %"
        yield f"Second-order MAML takes {shown} more time than {other}"
        if other == "Reptile":
            within = all(10 <= percent <= 30 for percent in more)
            yield agreement.claim("about 10 % - 30 % more time consuming", within)


def _attack_table(scale: Scale, data: str) -> Lines:
    of, title = scale.sources[data].of, scale.sources[data].title
    printed = PRINTED_ATTACKS.get(of, {})
    budgets = scale.axis("epsilon", (5.0, 20.0, 40.0) if of == FRAPPE else (2.0, 5.0, 15.0))
    usual_kinds, asked = ("paper", "loss"), {"repetitions": 5}
    if scale.is_quick:
        asked, budgets = {"repetitions": 2, "people": 50}, budgets[:1]
    for recipe in ("privrec", "dp-privrec", "lm-privrec", "privrec-plus", "dp-privrec-plus"):
        has_noise = recipe not in ("privrec", "privrec-plus")
        for epsilon in budgets if has_noise else (None,):
            given: Settings = {"epsilon": float(epsilon)} if epsilon else {}
            (run, *_) = scale.runs(recipe, data, **given)
            settings = {key: value for key, value in run.settings.items() if key != "noise"}
            kinds = (*usual_kinds, "sums") if recipe == "dp-privrec-plus" else usual_kinds
            cell = Cell(
                kind="attack",
                source=run.source,
                recipe=recipe,
                seed=run.seed,
                settings=settings,
                asked={"kinds": kinds, **asked},
            )
            column = "no noise" if epsilon is None else f"{epsilon:g}"
            known = printed.get(recipe, {}).get(None if epsilon is None else float(epsilon))
            for read, name in _ATTACKS.items():
                if read != "sums auc" or "sums" in kinds:
                    yield Line(
                        panel=f"{title}, {name}",
                        row=recipe,
                        cells=(cell,),
                        read=read,
                        column=column,
                        printed={} if known is None or read != "accuracy" else {column: known},
                    )


_ATTACKS = {
    "accuracy": "accuracy of the paper's attack",
    "loss auc": "AUC of the loss",
    "sums auc": "AUC of who sees every published sum",
}


def _about_attacks(panel: str, numbers: Sequence[Number]) -> Sentences:
    if not panel.endswith(_ATTACKS["accuracy"]):
        return
    yield from (
        f"{sentence} (ε {number.column})" if (sentence := agreement.beside_printed(number)) else ""
        for number in numbers
    )
    known = [number.ends for number in numbers if number.ends]
    guess = [low for low, high in known if low <= 0.5 <= high]
    yield f"In {len(guess)} of {len(known)} rows with an interval it holds 0.5: the attack guesses"


def _activity(scale: Scale, data: str) -> Lines:
    cell = Cell(kind="activity", source=scale.sources[data])
    title = scale.sources[data].title
    yield Line(panel="share of people", row=title, cells=(cell,), read="shares")
    for read in ("median", "below_mean"):
        yield Line(panel=_PANELS[read], row=title, cells=(cell,), read=read, column=_PANELS[read])


_PANELS = {"median": "median number of items", "below_mean": "share of people below the mean"}


def _about_activity(panel: str, numbers: Sequence[Number]) -> Sentences:
    if panel == _PANELS["below_mean"]:
        for number in numbers:
            many = None if number.value is None else number.value > 0.5
            claim = f"most users only visited a small number of items ({number.row})"
            yield agreement.claim(claim, many)


_ORDER_NOTE = "The order of two systems is compared by their means, without a test."
_BOTH = (MOVIELENS, FRAPPE)
_TABLE = partial(
    Experiment,
    says="PrivRec consistently outperforms all baseline FL methods; NCF is the upper bound.",
    lines=_table,
    sentences=_about_table,
    y_label="Hits@k",
    notes=(_ORDER_NOTE, "Rows without a printed one are ours, or references. nDCG is 1 / log2."),
)
EXPERIMENTS: dict[str, Experiment] = {
    "table-movielens": _TABLE(title="All systems on MovieLens-1M", data=(MOVIELENS,)),
    "table-frappe": _TABLE(title="All systems on Frappe", data=(FRAPPE,)),
    "fl-parameters": Experiment(
        title="PrivRec by rounds, local epochs and cohort",
        says="It rises up to 40 rounds and 100 local epochs; the cohort matters least.",
        data=_BOTH,
        lines=_fl_parameters,
        sentences=_about_parameters,
        x_label="value",
        notes=(
            "One split, the first of the seeds. “Our settings” are those of `privrec`.",
            "They have 20 rounds on the axis of local epochs, and 100 on that of the cohort.",
        ),
    ),
    "dp-hits": Experiment(
        title="DP-PrivRec-One, DP-PrivRec and PrivRec",
        says="DP-PrivRec is within 10 % of PrivRec, and better than DP-PrivRec-One.",
        data=_BOTH,
        lines=_dp_hits,
        sentences=_about_dp,
        y_label="Hits@k",
    ),
    "epsilon-tables": Experiment(
        title="ε for given δ and cohort",
        says="Different levels of privacy by choosing q and δ; z = 1, 1,000 rounds.",
        data=_BOTH,
        lines=_epsilon_tables,
        sentences=_about_epsilons,
        x_label="people in a round",
        y_label="ε",
        logs="y",
        decimals=4,
        needs_data=False,
        notes=("A round is one release, and ours counts it once, for the same noise of 2S.",),
    ),
    "budget": Experiment(
        title="Hits@20 against ε",
        says="PrivRec is an upper bound; accuracy rises quickly with ε, then stays.",
        data=_BOTH,
        lines=_budget,
        sentences=_about_budget,
        x_label="ε, at δ = 1e-6",
        logs="x",
        notes=("Both private recipes count everything that they release.",),
    ),
    "personalisation": Experiment(
        title="PrivRec and PrivRec-SGD for inactive people",
        says="PrivRec outperforms PrivRec-SGD by 20 % to 40 %.",
        data=(MOVIELENS,),
        lines=_personalisation,
        sentences=_about_people,
        y_label="Hits@k",
    ),
    "meta-cost": Experiment(
        title="Time of a round: first and second order",
        says="Second order takes about 10 % to 30 % more time.",
        data=(MOVIELENS,),
        lines=_meta_cost,
        sentences=_about_cost,
        x_label="people in a round",
        y_label="milliseconds",
        decimals=1,
    ),
    "attack-table": Experiment(
        title="Membership attacks",
        says="0.65 and 0.73 for PrivRec; 0.51 to 0.65 under noise.",
        data=_BOTH,
        lines=_attack_table,
        sentences=_about_attacks,
        x_label="ε",
        y_label="guessing has 0.5",
        logs="x",
        notes=("Five targets of the first seed; intervals are over targets, or by bootstrap.",),
    ),
    "activity": Experiment(
        title="How many items people have",
        says="A long tail: most users only visited a small number of items.",
        data=_BOTH,
        lines=_activity,
        sentences=_about_activity,
        x_label="so many items or more",
        y_label="share of people",
        logs="xy",
    ),
}
