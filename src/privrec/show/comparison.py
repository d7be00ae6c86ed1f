"""Runs side by side: one line for each recipe, the paper's figures beside ours, and the costs."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privrec.privacy.paper import PRINTED_HITS
from privrec.privacy.words import epsilon_text
from privrec.show.attacked import cell as attacked_cell
from privrec.show.report import KS, data_words, figure, is_papers_protocol, protocol_words

Evaluations = Mapping[str, Mapping[str, Any]]
"""The content of `evaluation.json`, by the name of the run."""

PAPER_NAMES = {
    "privrec": "PrivRec",
    "privrec-paper": "PrivRec",
    "privrec-cen": "PrivRec-CEN",
    "fcf": "FCF",
    "fedgnn": "FedGNN",
    "nn-self": "NN-SELF",
    "fofl-self": "FOFL-SELF",
    "ncf": "NCF, centralised",
}
"""Our recipe -> the name of the same system in the paper's tables."""
_BESIDE = ("10", "20")


def columns(ks: Sequence[str] = KS, *, attacked: bool = False) -> tuple[str, ...]:
    """Return the names of the table's columns, with Hits at these k.

    `attacked` adds what attacks and audits found.
    """
    found = ("attacked",) if attacked else ()
    beside = (f"paper @{k}" for k in _BESIDE)
    return ("", *(f"@{k}" for k in ks), *beside, "seconds", "bytes sent", *found, "privacy")


def any_attacked(evaluations: Evaluations) -> bool:
    """Return whether attacks or audits of any of the runs are known."""
    return any(evaluation.get("attacked") for evaluation in evaluations.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: a run, or the mean of runs that differ in their seed alone.

    `printed` has the paper's figures of the same system. `bytes_sent` and `seconds` are None where
    they are not known, `privacy` is what the runs promise in a few words, `attacked` what attacks
    and audits found.
    """

    name: str
    kind: str
    hits: Mapping[str, float | None]
    printed: Mapping[str, float]
    seconds: float | None = None
    bytes_sent: int | None = None
    privacy: str = ""
    attacked: str = ""

    def cells(self, ks: Sequence[str] = KS, *, attacked: bool = False) -> tuple[str, ...]:
        """Return the line as text, one cell for each of `columns` with the same arguments."""
        return (
            self.name,
            *(figure(self.hits[k]) for k in ks),
            *(figure(self.printed[k]) if self.printed else "" for k in _BESIDE),
            "" if self.seconds is None else f"{self.seconds:.0f}",
            "" if self.bytes_sent is None else f"{self.bytes_sent:,}",
            *((self.attacked,) if attacked else ()),
            self.privacy,
        )


def comparison(evaluations: Evaluations, settings: Evaluations) -> dict[str, list[Line]]:
    """Return for each data set and protocol the runs, the references and the paper's other systems.

    `settings` has the settings of each run. Runs that differ in their seed alone are one line.
    References depend on the split, so they are the mean over the seeds among the runs. One that
    was also trained as a recipe is not shown twice.
    """
    tables: dict[str, list[Line]] = {}
    titles = {name: f"{data_words(e)}{protocol_words(e)}" for name, e in evaluations.items()}
    for title in dict.fromkeys(titles.values()):
        names = [name for name in evaluations if titles[name] == title]
        groups = _groups(names, evaluations, settings)
        runs = [evaluations[name] for name in names]
        lines = [_line(group, evaluations) for group in groups]
        seeds = {run["seed"]: run["references"] for run in runs}
        shown = {run["recipe"] for run in runs}
        every = [
            name
            for name in runs[0]["references"]
            if name not in shown and all(name in found for found in seeds.values())
        ]
        for name in every:
            hits = _mean([found[name]["hits"] for found in seeds.values()])
            kind = f"{name} ({_seeds(list(seeds))})"
            lines.append(Line(name=kind, kind="reference", hits=hits, printed={}, privacy="none"))
        tables[title] = lines + _others(runs)
    return tables


def _groups(
    names: Sequence[str], evaluations: Evaluations, settings: Evaluations
) -> list[list[str]]:
    """Return the runs, those together that differ in their seed alone."""
    groups: list[list[str]] = []
    for name in names:
        mine = {**settings.get(name, {"run": name}), "seed": None}
        for group in groups:
            theirs = {**settings.get(group[0], {"run": group[0]}), "seed": None}
            known = {evaluations[one]["seed"] for one in group}
            if mine == theirs and evaluations[name]["seed"] not in known:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _line(group: Sequence[str], evaluations: Evaluations) -> Line:
    runs = [evaluations[name] for name in group]
    first = runs[0]
    printed = PRINTED_HITS.get(first["data"], {}).get(PAPER_NAMES.get(first["recipe"], ""), {})
    seconds = [run.get("cost", {}).get("seconds") for run in runs]
    sent = [run.get("cost", {}).get("bytes_sent") for run in runs]
    seeds = [run["seed"] for run in runs]
    return Line(
        name=group[0] if len(group) == 1 else f"{first['recipe']} ({_seeds(seeds)})",
        kind="ours",
        hits=_mean([run["hits"] for run in runs]),
        printed=printed if is_papers_protocol(first) else {},
        seconds=None if None in seconds else statistics.fmean(seconds),
        bytes_sent=None if None in sent else round(statistics.fmean(sent)),
        privacy=weakest([run["privacy"] for run in runs]),
        attacked=attacked_cell([run.get("attacked", {}) for run in runs]),
    )


def _others(runs: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the paper's systems that are not beside a run of ours."""
    first = runs[0]
    if not is_papers_protocol(first):
        return []
    beside = {PAPER_NAMES.get(run["recipe"]) for run in runs}
    return [
        Line(name=f"{name} (paper)", kind="paper", hits=hits, printed={})
        for name, hits in PRINTED_HITS.get(first["data"], {}).items()
        if name not in beside
    ]


def _mean(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for k in KS:
        known = [value for hits in found if (value := hits[k]) is not None]
        means[k] = statistics.fmean(known) if len(known) == len(found) else None
    return means


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def weakest(found: Sequence[Mapping[str, Any]]) -> str:
    """Return what all of these runs promise: the words of the one that promises least."""

    def strength(privacy: Mapping[str, Any]) -> tuple[bool, bool, float]:
        epsilon = privacy.get("epsilon")
        known = privacy.get("epsilon_of_mechanism")
        return epsilon is not None, known is not None, -(epsilon or known or 0.0)

    return guarantee(min(found, key=strength))


def guarantee(privacy: Mapping[str, Any]) -> str:
    """Return what a run promises in a few words: none, local, or user-level with its ε and δ."""
    delta = "" if privacy.get("delta") is None else f", δ = {privacy['delta']:g}"
    if privacy.get("stage_two_epsilon") is not None:
        return f"none; stage two alone {epsilon_text(privacy['stage_two_epsilon'])}"
    if privacy.get("epsilon") is not None:
        return f"user-level ε = {epsilon_text(privacy['epsilon'])}{delta}"
    if privacy.get("epsilon_of_mechanism") is not None:
        known = epsilon_text(privacy["epsilon_of_mechanism"])
        return f"seeded; ε of the mechanism = {known}{delta}"
    return "local noise: none for a person" if privacy.get("local_noise") else "none"
