"""What a run promises, in plain English: never more than its ledger shows.

There are two forms. The statement says everything in one sentence, for files. The short one is for
people who decide; it has what is not covered as a list. ε is rounded up, so that the printed
guarantee is never too strong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from privrec.data.text import ITEM_FEATURES, short
from privrec.privacy.ledger import PrivacyLedger, most_certain, percent
from privrec.privacy.release import Sampling
from privrec.types import NoiseKind

Strength = Literal["none", "weak", "moderate", "strong"]
STRONG, MODERATE = 1.0, 5.0
"""The largest ε that is called strong, and moderate. 1 is the end of tier 1, "strong", of
Ponomareva et al. 2023 (How to DP-fy ML, JAIR 77). Their tier 2, "reasonable", ends at 10. 5 is our
own cut: there, an attacker's 50 % may become more than 99 %."""
TITLES: dict[Strength, str] = {
    "none": "No guarantee",
    "weak": "Weak protection",
    "moderate": "Moderate protection",
    "strong": "Strong protection",
}
SCALE = (
    f"strong up to epsilon {STRONG:g} (as Ponomareva et al. 2023), moderate up to {MODERATE:g}"
    " (our own cut), weak above"
)


def strength_of(epsilon: float | None) -> Strength:
    """Return how strong a guarantee is, in a word; None and infinity are no guarantee.

    >>> [strength_of(epsilon) for epsilon in (0.5, 1.0, 1.01, 5.0, 8.0, None)]
    ['strong', 'strong', 'moderate', 'moderate', 'weak', 'none']
    """
    if epsilon is None or math.isinf(epsilon):
        return "none"
    return "strong" if epsilon <= STRONG else "moderate" if epsilon <= MODERATE else "weak"


def headline(privacy: Mapping[str, Any]) -> str:
    """Return what is promised in a few words, from the `privacy` part of `evaluation.json`.

    >>> headline({"epsilon": 3.9841, "delta": 1e-06}), headline({"epsilon": None})
    ('moderate protection, epsilon 3.99 at delta 1e-06', 'no guarantee, epsilon is infinite')
    """
    epsilon = privacy["epsilon"]
    word = TITLES[strength_of(epsilon)].lower()
    if epsilon is None:
        return f"{word}, epsilon is infinite"
    return f"{word}, epsilon {epsilon_text(epsilon)} at delta {privacy['delta']!r}"


def epsilon_text(epsilon: float | None, decimals: int | None = None) -> str:
    """Return ε rounded up to `decimals` decimals or to three digits; "infinite" for None.

    >>> epsilon_text(3.9841), epsilon_text(0.01234), epsilon_text(7.96, 4), epsilon_text(None)
    ('3.99', '0.0124', '7.9600', 'infinite')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinite"
    if decimals is None:
        decimals = max(0, 2 - math.floor(math.log10(epsilon))) if epsilon > 0 else 2
    # `Decimal` represents a float exactly.
    exact = Decimal(epsilon).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_CEILING)
    return f"{exact:f}"


FEDERATED = (
    "No differential privacy guarantee (epsilon is infinite): raw data stays on the devices, but "
    "updates are averaged without noise, so neither the server nor anybody who sees the model is "
    "prevented from learning about a person who took part; what a device learns while adapting "
    "is never sent."
)
SUMS = (
    "No differential privacy guarantee (epsilon is infinite): every device adds what it knows to "
    "sums, and the server sees each contribution, which shows the person's list of items, unless "
    "contributions are added up before they reach it; sums and updates have no noise, so nobody "
    "who sees the model is prevented from learning about a person who took part; what a device "
    "ranks for itself is never sent."
)
GRAPH = (
    "No differential privacy guarantee (epsilon is infinite): the recommendation server sees from "
    "each device a clipped gradient, with the noise, if any, that it adds to each number, for the "
    "items that it touched and for random other ones; over many numbers and rounds such noise "
    "averages out, so a person's items can be learned; where neighbours are matched, the matching "
    "server sees keyed hashes of the items that each person likes, and so who likes the same "
    "items, and her vector, and gives vectors of people to the devices of others; the model "
    "itself then contains such vectors, by item, and the key of the hashes."
)
CENTRAL = (
    "No privacy at all (epsilon is infinite): the training people's raw data is collected in one "
    "place, and the result can reveal it; shown for comparison only."
)
SEES_UPDATES = "which sees single updates and is trusted to keep none"
SEES_ITEMS = (
    "which sees what each device adds to the sums, a list of items and what was computed from it, "
    "and is trusted to keep none"
)
SEES_NODES = (
    "which sees each node's sum over its people, a single person's contribution where a node serves"
    " one, and is trusted to keep none"
)
SEES_SUMS = (
    "which adds the noise, sees each exact sum over all nodes that took part, though no single "
    "node's as long as it follows the protocol, and is trusted to keep none"
)
SEES_NOISED = (
    "which sees each sum only with the noise of the nodes, as long as it follows the protocol, and "
    "is trusted to follow it"
)
OVER_FLOWER = (
    " The messages went over Flower, where nodes run the code that comes with a run: whoever starts"
    " runs there could send other code that reads people's data, and nothing here holds against"
    " that."
)
AGAINST_SERVER = (
    " The server is covered too, whether it follows the protocol or not, as long as at least "
    "{honest} of the {nodes} nodes are honest: the nodes add the noise. The "
    "server knows who was asked and can get {sums} sums of each round, so against it epsilon is "
    "{epsilon} at delta {delta!r}."
)
SEEDED = (
    "For experiments only: no protection. The noise of this run came from its seed, and anybody "
    "who knows or guesses the seed can remove it. The same run with secure noise would have "
    "epsilon {epsilon} at delta {delta!r} ({how})."
)
FIRST_STAGE_BARE = (
    "No differential privacy guarantee end to end (epsilon is infinite): the first stage learned "
    "item vectors from everybody's sequences without noise, and they depend on each of them; the "
    "second stage alone, if the first had seen nobody{seeded}, would have epsilon {alone} at "
    "delta {delta!r}, which protects nobody here."
)

_SHORT = {
    FEDERATED: "Raw data stays on the devices, but updates are averaged without noise: neither the"
    " server nor anybody who sees the model is prevented from learning about a person.",
    SUMS: "The sums have no noise: nobody who sees the model is prevented from learning about a"
    " person, and the server sees each person's list of items, unless contributions are added up"
    " before they reach it.",
    GRAPH: "Noise that devices add to each number, if any, averages out over many rounds: the"
    " server can learn a person's items. Where neighbours are matched, the model contains vectors"
    " of people.",
    CENTRAL: "The training people's raw data is collected in one place, and the result can reveal"
    " it: for comparison only.",
}
"""Short forms of the statements that there is no guarantee."""
_SHORT_SEEDED = (
    "For experiments only: the noise came from a seed, and anybody who knows or guesses the seed"
    " can remove it. With secure noise it would be {strength} (epsilon {epsilon}, delta {delta!r})."
)
_SHORT_FIRST_STAGE = (
    "The first stage had no noise, and what it learned depends on everybody's sequences. The second"
    " stage alone would have epsilon {alone} at delta {delta!r}, which protects nobody here."
)
_SHORT_SERVER = (
    " Against the server, epsilon is {epsilon} ({strength}), if at least {honest} of {nodes} nodes"
    " are honest."
)
_GUESS = {
    "add or remove one person": "that she took part",
    "replace one person": "that her data was used and not somebody else's",
}
_CHANGE = {
    "add or remove one person": "with and without all of one person's data",
    "replace one person": "with all of one person's data replaced by anything else",
}
_LAWS = {"poisson": "Poisson", "fixed": "fixed-size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoise:
    """Noise from nodes: all of it is there if at least `honest` of all `nodes` are honest.

    The server can get `sums` sums of each round. They cost `epsilon` at the run's delta.
    """

    nodes: int
    honest: int
    sums: int
    epsilon: float

    def words(self, delta: float) -> str:
        """Return what holds against the server, as a sentence."""
        return AGAINST_SERVER.format(
            honest=self.honest,
            nodes=self.nodes,
            sums=self.sums,
            epsilon=epsilon_text(self.epsilon),
            delta=delta,
        )

    def short(self) -> str:
        """Return what `words` says, in short."""
        return _SHORT_SERVER.format(
            epsilon=epsilon_text(self.epsilon),
            strength=strength_of(self.epsilon),
            honest=self.honest,
            nodes=self.nodes,
        )


def against_server(planned: PrivacyLedger, sums: int, delta: float) -> float:
    """Return epsilon against a server that gets `sums` sums of each planned round.

    The server knows who was asked, so sampling amplifies nothing. `planned` has all rounds of the
    terms, because nodes would answer all of them.
    """
    seen = PrivacyLedger()
    for release, count in planned.entries:
        sampling = replace(release.sampling, users=release.sampling.cohort)
        seen = seen.record(replace(release, sampling=sampling), count * sums)
    return seen.epsilon(delta)


def uncovered(server: str | None, undeclared: Sequence[str] = ()) -> list[str]:
    """Return what the guarantee does not cover, as a list.

    `server` says what the server sees; None if the guarantee covers it. `undeclared` lists what was
    computed from people's data although the model's shape or scale depends on it, and features of
    items that were used without a declaration.
    """
    parts = [
        *([] if server is None else [f"the server, {server}"]),
        "the people kept for validation and testing",
        "everything in the folder `simulation`, which is computed from raw data",
        "other runs on the same people, which add up (`privrec privacy spent`)",
        "settings that were chosen by looking at people's data",
    ]
    assumed = [part for part in undeclared if part.startswith(ITEM_FEATURES)]
    if computed := [part for part in undeclared if part not in assumed]:
        parts.append(
            "what was computed from people's data because the data set does not declare it"
            " public: " + ", ".join(computed)
        )
    parts += [
        f"what of {part} was computed from people's data, because they were taken as public without"
        " a declaration"
        for part in assumed
    ]
    return parts


def used_as_public(item_features: Sequence[str]) -> str:
    """Return which features of items a model was made with, as a sentence; "" if with none."""
    if not item_features:
        return ""
    named = ", ".join(repr(short(name)) for name in item_features)
    return f" These features of items were used as public, without noise: {named}."


def _listed(left_out: Sequence[str]) -> str:
    *parts, last = left_out
    return f"not covered: {'; '.join(parts)}; and {last}"


def noised(server: str) -> str:
    """Return what recipes with noise promise, before a run gives ε and δ."""
    return (
        "User-level differential privacy for the people who train, against anybody who sees the "
        "model during or after training, with the epsilon and delta that a run is given or its "
        f"noise amounts to; {_listed(uncovered(server))}; and what a data set does not declare "
        "public."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyReport:
    """What a run costs at `delta`; `epsilon` is None if there is no guarantee.

    `epsilon_of_mechanism` is what the releases would cost with secure noise. It equals `epsilon`,
    or is a figure without a guarantee if the noise was seeded. `stage_two_epsilon` is what the
    second stage would cost if the first had used nobody's data; it is no guarantee, and is given
    only if there is none. `local_noise` is true if devices add noise to what they send, which is no
    guarantee for a person. `strength` is ε in a word, `short` the statement in a few sentences,
    without what is `not_covered`.
    """

    epsilon: float | None = None
    epsilon_of_mechanism: float | None = None
    epsilon_rdp: float | None = None
    delta: float | None = None
    noise: NoiseKind | None = None
    sampling: str | None = None
    adjacency: str | None = None
    rounds: int
    noise_multiplier: float | None = None
    end_to_end: bool = True
    stage_two_epsilon: float | None = None
    statement: str
    short: str
    strength: Strength = "none"
    not_covered: tuple[str, ...] = ()
    local_noise: bool = False

    def __repr__(self) -> str:
        names = ("epsilon", "epsilon_of_mechanism", "delta", "noise", "rounds")
        figures = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"PrivacyReport({figures})\n  {short(self.statement, 600)}"

    def as_json(self) -> dict[str, Any]:
        """Return the `privacy` part of `evaluation.json`."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "not_covered": list(self.not_covered)}


def privacy_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    noise: NoiseKind,
    without: str,
    server: str | NodeNoise = SEES_UPDATES,
    second: PrivacyLedger | None = None,
    undeclared: Sequence[str] = (),
    item_features: Sequence[str] = (),
) -> PrivacyReport:
    """Return what the ledger's releases promise; if they promise nothing, say `without`.

    `server` says what the server sees, or which nodes add the noise instead of it. `second` is the
    ledger of a second stage after a first stage without noise. `undeclared` was computed from
    people's data and is not covered. `item_features` were used as they are, as public.
    """
    epsilon = ledger.epsilon(delta) if ledger.entries else math.inf
    if math.isinf(epsilon):
        return _without_guarantee(ledger, delta, noise, without, second)
    secure, rdp = noise == "secure", ledger.epsilon_rdp(delta)
    if secure:
        trusted = None if isinstance(server, NodeNoise) else server
        left_out = uncovered(trusted, undeclared)
        sentence = _statement(ledger, epsilon, delta, left_out) + used_as_public(item_features)
        brief = _short(ledger, delta)
        if isinstance(server, NodeNoise):
            sentence += server.words(delta)
            brief += server.short()
    else:
        figures = {"epsilon": epsilon_text(epsilon), "delta": delta}
        sentence = SEEDED.format(**figures, how=_how(ledger))
        brief = _SHORT_SEEDED.format(**figures, strength=strength_of(epsilon))
        left_out = []
    sampling = ledger.entries[0][0].sampling
    multipliers = {release.joint_multiplier for release, _ in ledger.entries}
    return PrivacyReport(
        epsilon=epsilon if secure else None,
        epsilon_of_mechanism=epsilon,
        epsilon_rdp=rdp if secure and not math.isinf(rdp) else None,
        delta=delta,
        noise=noise,
        sampling=sampling.law,
        adjacency=sampling.adjacency,
        rounds=ledger.releases,
        noise_multiplier=multipliers.pop() if len(multipliers) == 1 else None,
        statement=sentence,
        short=brief,
        strength=strength_of(epsilon if secure else None),
        not_covered=tuple(left_out),
    )


def _without_guarantee(
    ledger: PrivacyLedger,
    delta: float,
    noise: NoiseKind,
    without: str,
    second: PrivacyLedger | None,
) -> PrivacyReport:
    alone = second.epsilon(delta) if second is not None and second.entries else math.inf
    if math.isinf(alone):
        brief = _SHORT.get(without, without)
        return PrivacyReport(rounds=ledger.releases, statement=without, short=brief)
    seeded = " and its noise were not seeded" if noise == "seeded" else ""
    figures = {"alone": epsilon_text(alone), "delta": delta}
    return PrivacyReport(
        noise=noise,
        rounds=ledger.releases,
        end_to_end=False,
        stage_two_epsilon=alone,
        statement=FIRST_STAGE_BARE.format(**figures, seeded=seeded),
        short=_SHORT_FIRST_STAGE.format(**figures),
    )


def _statement(ledger: PrivacyLedger, epsilon: float, delta: float, left_out: list[str]) -> str:
    sampling = ledger.entries[-1][0].sampling
    return (
        f"{_covered(sampling)} is protected against anybody who sees "
        f"the model, during or after training: {_CHANGE[sampling.adjacency]}, whatever "
        f"can be seen of it is equally likely up to a factor of e^{epsilon_text(epsilon)}, apart "
        f"from a probability of {delta!r} (epsilon {epsilon_text(epsilon)}, delta {delta!r}; "
        f"{_how(ledger)}); {_listed(left_out)}."
    )


def _short(ledger: PrivacyLedger, delta: float) -> str:
    sampling = ledger.entries[-1][0].sampling
    return (
        f"{_covered(sampling)} is protected against anybody who sees the model, with all"
        f" of her data. An attacker who gave it 50 % {_GUESS[sampling.adjacency]} can get to at"
        f" most {percent(most_certain(ledger, delta))}, apart from a chance of {delta!r}."
    )


def _covered(sampling: Sampling) -> str:
    about = "about" if sampling.law == "poisson" else "the"
    return f"Each of {about} {sampling.users:,} people who train"


def _how(ledger: PrivacyLedger) -> str:
    release = ledger.entries[-1][0]
    rounds = "1 release" if ledger.releases == 1 else f"{ledger.releases:,} releases"
    law, mechanism = _LAWS[release.sampling.law], release.mechanism.capitalize()
    return f"{rounds}, {law} cohorts, {mechanism} noise"
