"""Runs side by side: one line for each recipe, the paper's figures beside ours, and the costs.

The page of runs side by side.
"""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privrec.evaluation.intervals import Difference, OfRuns, People, mean_hits, mean_of
from privrec.privacy.paper import PRINTED_HITS
from privrec.privacy.statement import epsilon_text
from privrec.show.figures import arm_text, warned_of
from privrec.show.figures import cell as attacked_cell
from privrec.show.page import RAW_NOTE, figure, html_link, html_table, html_text, note, page, table
from privrec.show.promise import statement_html
from privrec.show.report import (
    ATTACKED_NOTE,
    KS,
    Row,
    boxes,
    data_words,
    hits_table,
    is_papers_protocol,
    looks_in,
    protocol_words,
    validation_html,
)

Evaluations = Mapping[str, Mapping[str, Any]]
"""The content of `evaluation.json`, by the name of the run."""
PeopleOfRuns = Mapping[str, People | None]
"""The figures of each person, by the name of the run."""

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
_USUAL = "random"
"""The halving of the paper: a person's data is halved at random."""


def columns(ks: Sequence[str] = KS, *, attacked: bool = False) -> tuple[str, ...]:
    """Return the names of the table's columns, with Hits at these k.

    `attacked` adds what attacks and audits found.
    """
    found = ("attacked",) if attacked else ()
    beside = (f"paper @{k}" for k in _BESIDE)
    return (
        "",
        *(f"@{k}" for k in ks),
        "± at 20",
        *beside,
        "seconds",
        "bytes sent",
        *found,
        "privacy",
    )


def any_attacked(evaluations: Evaluations) -> bool:
    """Return whether attacks or audits of any of the runs are known."""
    return any(evaluation.get("attacked") for evaluation in evaluations.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: a run, or the mean of runs that differ in their seed alone.

    `printed` has the paper's figures of the same system. `bytes_sent` and `seconds` are None where
    they are not known, `privacy` is what the runs promise in a few words, `attacked` what attacks
    and audits found. `interval` has the ends over people by k; `by_seed` are the figures of each
    seed at 20. Both are empty if not known.
    """

    name: str
    kind: str
    hits: Mapping[str, float | None]
    printed: Mapping[str, float]
    seconds: float | None = None
    bytes_sent: int | None = None
    privacy: str = ""
    attacked: str = ""
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_seed: Mapping[int, float | None] = field(default_factory=dict)

    def cells(self, ks: Sequence[str] = KS, *, attacked: bool = False) -> tuple[str, ...]:
        """Return the line as text, one cell for each of `columns` with the same arguments."""
        return (
            self.name,
            *(figure(self.hits[k]) for k in ks),
            arm_text(self.hits["20"], self.interval.get("20")),
            *(figure(self.printed[k]) if self.printed else "" for k in _BESIDE),
            "" if self.seconds is None else f"{self.seconds:.0f}",
            "" if self.bytes_sent is None else f"{self.bytes_sent:,}",
            *((self.attacked,) if attacked else ()),
            self.privacy,
        )


def comparison(
    evaluations: Evaluations, settings: Evaluations, people: PeopleOfRuns | None = None
) -> dict[str, list[Line]]:
    """Return for each data set and protocol the runs, the references and the paper's other systems.

    `settings` has the settings of each run, `people` the figures of each person where they are
    known. Runs that differ in their seed alone are one line. References depend on the split, so
    they are the mean over the seeds among the runs. One that was also trained as a recipe is not
    shown twice.
    """
    known = people or {}
    tables: dict[str, list[Line]] = {}
    for title, groups in groups_of(evaluations, settings).items():
        names = [name for group in groups for name in group]
        runs = [evaluations[name] for name in names]
        lines = [_line(group, evaluations, known) for group in groups]
        shown = {run["recipe"] for run in runs}
        for reference in dict.fromkeys(one for run in runs for one in run["references"]):
            if reference not in shown:
                lines += _reference_lines(reference, {n: evaluations[n] for n in names}, known)
        tables[title] = lines + _others(runs)
    return tables


def _reference_lines(name: str, runs: Evaluations, people: PeopleOfRuns) -> list[Line]:
    """Return the line of a reference, the mean over seeds; none if it is not there for all seeds.

    Runs of the same seed may have tested other people or items. Then there is a line for each
    figure, which says beside which run it was found.
    """
    found: dict[tuple[int, tuple[float, ...]], str] = {}
    for run, evaluation in runs.items():
        if name in evaluation["references"]:
            hits = evaluation["references"][name]["hits"]
            key = evaluation["seed"], tuple(round(hits[k] or 0.0, 9) for k in KS)
            if people.get(found.setdefault(key, run)) is None and people.get(run) is not None:
                found[key] = run
    seeds = {seed for seed, _ in found}
    if seeds != {evaluation["seed"] for evaluation in runs.values()}:
        return []
    if len(found) > len(seeds):
        return [
            _reference_line(name, f"beside {run}", {run: runs[run]}, people)
            for run in found.values()
        ]
    chosen = {run: runs[run] for run in found.values()}
    return [_reference_line(name, _seeds([seed for seed, _ in found]), chosen, people)]


def _reference_line(name: str, where: str, runs: Evaluations, people: PeopleOfRuns) -> Line:
    found = [run["references"][name] for run in runs.values()]
    return Line(
        name=f"{name} ({where})",
        kind="reference",
        hits=_mean([one["hits"] for one in found]),
        printed={},
        privacy="none",
        interval=mean_interval(found, [people.get(run) for run in runs], name),
        by_seed={run["seed"]: run["references"][name]["hits"]["20"] for run in runs.values()},
    )


def title_of(evaluation: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the title of the table that a run is in: its data, and how people were tested."""
    halving = settings.get("halving", _USUAL)
    is_halved = evaluation.get("protocol", "halves") == "halves"
    how = f", halved by {halving}" if is_halved and halving != _USUAL else ""
    return f"{data_words(evaluation)}{protocol_words(evaluation)}{how}"


def groups_of(evaluations: Evaluations, settings: Evaluations) -> dict[str, list[list[str]]]:
    """Return for each data set and protocol the runs, those together that differ in their seed."""
    titles = {name: title_of(e, settings.get(name, {})) for name, e in evaluations.items()}
    return {
        title: _groups(
            [name for name in evaluations if titles[name] == title], evaluations, settings
        )
        for title in dict.fromkeys(titles.values())
    }


def _groups(
    names: Sequence[str], evaluations: Evaluations, settings: Evaluations
) -> list[list[str]]:
    """Return the runs, those together that differ in their seed alone.

    Recommenders of one's own must have the same code too, not only the same name.
    """

    def asked(name: str) -> dict[str, Any]:
        made = settings.get(name, {"run": name})
        return {**made, "seed": None, "scorer": evaluations[name].get("scorer")}

    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            known = {evaluations[one]["seed"] for one in group}
            if asked(name) == asked(group[0]) and evaluations[name]["seed"] not in known:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _line(group: Sequence[str], evaluations: Evaluations, people: PeopleOfRuns) -> Line:
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
        interval=mean_interval(runs, [people.get(name) for name in group]),
        by_seed={run["seed"]: run["hits"]["20"] for run in runs},
    )


def mean_interval(
    runs: Sequence[Mapping[str, Any]], people: OfRuns, reference: str | None = None
) -> dict[str, tuple[float, float]]:
    """Return the ends of the mean over runs, or over their references, by k; empty if not known."""
    if not all(run.get("interval") for run in runs):
        return {}
    means = mean_with_ends(runs, people, reference)
    return {k: (one.low, one.high) for k, one in means.items()}


def mean_with_ends(
    runs: Sequence[Mapping[str, Any]], people: OfRuns, reference: str | None = None
) -> dict[str, Difference]:
    """Return the mean of Hits@k over runs that have intervals, with its ends, by k.

    The same people may be in several of them. `people` has the figures of each, or of `reference`
    for each; where they are not known, the mean is taken to be no surer than one run.
    """
    known = mean_hits(people, reference) if len(runs) > 1 else None
    if known is not None:
        return {str(k): one for k, one in known.items()}
    return {k: mean_of([_with_ends(run, k) for run in runs]) for k in KS}


def _with_ends(run: Mapping[str, Any], k: str) -> Difference:
    low, high = run["interval"][k]
    return Difference(by=run["hits"][k], low=low, high=high)


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


Rounds = Mapping[str, Sequence[Mapping[str, Any]]]
_K = "20"
_LOOK = "wide words"
_OPTIONAL = ("epsilon", "noise_multiplier")
"""Settings that a run of any recipe with noise may lack: then they differ."""


def render_comparison(
    evaluations: Evaluations,
    settings: Evaluations,
    *,
    rounds: Rounds | None = None,
    reports: Mapping[str, str] | None = None,
    said: Mapping[str, Sequence[str]] | None = None,
    tables: Mapping[str, Sequence[Line]] | None = None,
) -> str:
    """Return the page that shows several runs side by side, one part for each data set.

    `rounds` are what each run's rounds did, `reports` the addresses of the runs' reports, `said`
    for each table the sentences about what is better than what, `tables` the lines of each, if
    they are known already.
    """
    parts = ["<h1>Runs side by side</h1>"]
    attacked = any_attacked(evaluations)
    head = columns(attacked=attacked)
    known = reports or {}
    for data, lines in (tables or comparison(evaluations, settings)).items():
        cells = [
            [_linked(line.name, known), *map(_cell, line.cells(attacked=attacked)[1:])]
            for line in lines
        ]
        kinds = [line.kind for line in lines]
        mine = {
            name: one
            for name, one in evaluations.items()
            if title_of(one, settings.get(name, {})) == data
        }
        parts += [
            f"<h2>{html_text(data)}</h2>",
            html_table(*_filled(head, cells), kinds=kinds, name=f"Hits@k on {data}", look=_LOOK),
            _listed((said or {}).get(data, ())),
            boxes([f"{name}: {line}" for name, one in mine.items() for line in warned_of(one)]),
            _new_items(mine),
            _curves(
                {name: (rounds or {}).get(name, []) for name in mine},
                {name: str(one["recipe"]) for name, one in mine.items()},
            ),
            _differing({name: settings[name] for name in mine if name in settings}),
        ]
    parts.append(
        note(
            "Bytes sent are those of one person of usual size in one round. Rows marked (paper)"
            " and the columns of the paper are printed figures from another split."
        )
    )
    if attacked:
        parts.append(ATTACKED_NOTE)
    parts.append("<h2>Privacy</h2>")
    for name, evaluation in evaluations.items():
        parts.append(statement_html(evaluation["privacy"], f"<b>{_linked(name, known)}</b>: "))
    parts.append(RAW_NOTE)
    return page("Runs side by side", parts)


def _cell(text: str) -> str:
    """Return a cell as HTML; a line does not end inside "δ = 1e-06"."""
    return re.sub(r"δ = \S+", r'<span class="one">\g<0></span>', html_text(text))


def _listed(sentences: Sequence[str]) -> str:
    lines = "".join(f"<li>{html_text(line)}</li>" for line in sentences)
    return f"<ul>{lines}</ul>" if lines else ""


def _filled(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that are empty in all rows."""
    kept = [n for n in range(len(head)) if any(row[n] for row in rows)]
    return [head[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _linked(name: str, reports: Mapping[str, str]) -> str:
    return html_link(name, reports[name]) if name in reports else html_text(name)


def _new_items(evaluations: Evaluations) -> str:
    """Return the table over items that are new to a person; "" if it says what the first says."""
    rows: list[Row] = []
    ends: dict[str, Mapping[str, Sequence[float]]] = {}
    others: dict[str, Mapping[str, Any]] = {}
    for name, one in evaluations.items():
        new = one.get("new_only", {})
        if "hits" in new:
            rows.append((name, new["hits"], "ours"))
            ends |= {name: new["interval"]} if "interval" in new else {}
        recipes = {run["recipe"] for run in evaluations.values()}
        for other, found in one["references"].items():
            if other not in recipes and "hits" in found.get("new_only", {}):
                called = f"{other} (seed {one['seed']})"
                if others.get(called, found["new_only"])["hits"] != found["new_only"]["hits"]:
                    # Other people or items were tested under the same seed.
                    called = f"{other} (beside {name})"
                others.setdefault(called, found["new_only"])
    same = all(
        hits[k] is None or abs(hits[k] - evaluations[name]["hits"][k]) < 1e-12
        for name, hits, _ in rows
        for k in KS
    )
    if same:
        return ""
    rows += [(other, found["hits"], "reference") for other, found in others.items()]
    ends |= {other: found["interval"] for other, found in others.items() if "interval" in found}
    return f"<h3>Only items that are new to the person</h3>{hits_table(rows, ends)}"


def _curves(rounds: Rounds, recipes: Mapping[str, str]) -> str:
    """Return the curves of the runs on their validation people, one over another."""
    looks = {name: looks_in(lines, _K) for name, lines in rounds.items()}
    chart = validation_html(looks, y_label=f"Hits@{_K} of validation people", kinds=recipes)
    return f"<h3>Quality on the validation people</h3>{chart}" if chart else ""


def _differing(settings: Evaluations) -> str:
    """Return a table of the settings that are not the same in all runs; "" if all are.

    Settings that have one value, but that not all recipes know, are folded up below it: there can
    be many of them, and they hide what was changed.
    """
    keys = dict.fromkeys(key for one in settings.values() for key in one)
    values = {key: [str(one[key]) for one in settings.values() if key in one] for key in keys}
    lacking = [key for key in keys if len(values[key]) < len(settings)]
    changed = {key for key in keys if len(set(values[key])) > 1}
    differing = [key for key in keys if key in changed or (key in _OPTIONAL and key in lacking)]
    lacking = [key for key in lacking if key not in differing]

    def shown(name: str, some: Sequence[str]) -> str:
        rows = [
            [key, *(str(one[key]) if key in one else "-" for one in settings.values())]
            for key in some
        ]
        return table(["", *settings], rows, name=name, look="wide text short")

    parts = []
    if differing:
        parts += ["<h3>Settings that differ</h3>", shown("Settings that differ", differing)]
    if lacking:
        name = "Settings that not all of these recipes have"
        parts.append(
            f"<details><summary>{name}: {len(lacking)}</summary>{shown(name, lacking)}</details>"
        )
    same = len(keys) - len(differing) - len(lacking)
    return "".join(parts) + note(f"{_count(same)} the same in all of these runs.") if parts else ""


def _count(same: int) -> str:
    return "1 other setting is" if same == 1 else f"{same} other settings are"
