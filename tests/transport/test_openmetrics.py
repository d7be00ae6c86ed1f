"""`/metrics` of a server: a parser reads it, and nothing of one person is in it."""

import ssl
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from link_nodes import ended_nodes, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import privrec
from loopback import Loopback, count_attempts, noised
from privrec.data.federation import Federation
from privrec.protocol.certificates import make_authority
from privrec.protocol.server import Server, ServerStatus
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.transport import client
from privrec.transport.link import open_link
from privrec.transport.local import LOCAL, free_port
from privrec.transport.metrics import Spent, text

RECIPE = "dpals"
"""What is told has the same size, whatever was published; and everybody is in each cohort."""
DATA = "synthetic:users=40,items=30,longest=12"


def read(page: str) -> dict[str, float]:
    """Return each sample by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(page):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            found[f"{sample.name} {sample.labels.get('kind', '')}".strip()] = sample.value
    return found


def test_a_parser_reads_it() -> None:
    status = ServerStatus(online={0, 2}, abandoned=3, refused={"a": 2, "b": 1}, step="done")
    counts = Counter({"exchanges": 7, "bytes in": 100, "refused 413": 4})
    page = text(status, counts, 5, lambda: (12, 1.5))
    assert page.endswith("# EOF\n")
    found = read(page)
    assert found["privrec_nodes_enrolled"] == 5
    assert found["privrec_nodes_online"] == 2
    assert found["privrec_rounds_published"] == 12
    assert found["privrec_epsilon"] == 1.5
    assert found["privrec_running"] == 0
    assert found["privrec_exchanges_total"] == 7
    assert found["privrec_rounds_abandoned_total"] == 3
    assert found["privrec_received_bytes_total"] == 100
    assert not [name for name in found if "sent" in name]
    assert found["privrec_refused_total too large"] == 4
    assert found["privrec_refused_total by the protocol"] == 3
    assert found["privrec_refused_total malformed"] == 0


def with_other_likes(data: Federation, position: int) -> Federation:
    """Return the same people, of whom one likes other things."""
    take = data.take

    def taken(positions: object) -> privrec.data.clients.Clients:
        people = take(positions)  # type: ignore[arg-type]
        theirs = np.isin(people.owner, np.flatnonzero(np.asarray(positions) == position))
        item = np.where(theirs, (people.item + 7) % data.n_items, people.item)
        return replace(people, item=item.astype(people.item.dtype), liked=people.liked ^ theirs)

    return replace(data, take=taken)


def metrics_after(data: Federation, path: Path, patch: pytest.MonkeyPatch) -> str:
    """Return the page after a training with secure sums, from the server as it still runs."""
    count_attempts(patch)
    prepared = noised(RECIPE, data, sampling="fixed")
    net = Loopback(prepared, path, fake=True, min_people=1, deadline=120.0)
    make_authority(path, hosts=[LOCAL])
    plan, status, counts = net.run(), ServerStatus(), Counter[str]()
    place = records.create_run(path / "run", net.terms.settings, "{}", None)
    port, spent = free_port(), Spent(place, net.terms.settings.budget.delta)

    def page() -> str:
        return text(status, counts, len(net.keys), spent)

    with (
        ended_nodes(patch) as threads,
        open_link(path, net.keys, host=LOCAL, port=port, metrics=page, counts=counts) as link,
    ):
        for k, node in net.nodes.items():
            known = {
                "server": f"{LOCAL}:{port}",
                "ca": path / "ca.crt",
                "key": path / f"node{k}" / "key",
            }
            threads.append(threading.Thread(target=client.serve, args=(node.handle,), kwargs=known))
            threads[-1].start()
        until(lambda: len(link.online()) == len(net.keys))
        server = Server(
            terms=net.terms,
            ask=link.ask,
            online=lambda: status.look(link.online),
            status=status,
            verify=net.verify,
            run="fedcba9876543210",
        )
        play_stages(plan, place, network=server.network())
        context = ssl.create_default_context(cafile=str(path / "ca.crt"))
        return httpx.get(f"https://{LOCAL}:{port}/metrics", verify=context, trust_env=False).text


def test_it_is_the_same_whatever_one_person_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = privrec.load(DATA)
    prepared = noised(RECIPE, data, sampling="fixed")
    person = int(prepared.task.split.train[3])
    other = with_other_likes(data, person)
    assert not np.array_equal(
        other.take(np.array([person])).item, data.take(np.array([person])).item
    )
    first, second = tmp_path / "first", tmp_path / "second"
    one = metrics_after(data, first, monkeypatch)
    assert read(one)["privrec_rounds_published"] >= 2
    assert read(one)["privrec_received_bytes_total"] > 1000
    before, after = read(one), read(metrics_after(other, second, monkeypatch))
    assert before == after
