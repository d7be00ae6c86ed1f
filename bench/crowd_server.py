"""The server of a federation with many nodes, in a process of its own: it does what is asked.

A line of its input is a command. It answers with lines of JSON: the steps of a round, and at the
end what the command cost.
"""

import hashlib
import json
import os
import resource
import secrets
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from noop_node import NOTHING
from privrec.core.contribution import told_to_bytes
from privrec.core.phase import Cohort
from privrec.privacy.aggregate import Published
from privrec.protocol.certificates import verify
from privrec.protocol.enrolment import read_server
from privrec.protocol.server import Server, ServerStatus, Unmasking, executor
from privrec.protocol.terms import phases_of, plan_of
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.transport.link import Link, open_link
from privrec.transport.local import LOCAL


def say(**words: Any) -> None:
    print(json.dumps(words), flush=True)


class Rounds:
    """The rounds of a recipe, one after another, without noise."""

    def __init__(self, path: Path, link: Link) -> None:
        self.folder, terms, catalogue = read_server(path)
        keys = [member.public_key for member in terms.members]
        self.plan = plan_of(terms, catalogue)
        self.phases = list(phases_of(self.plan))
        self.params: Any = None
        self.server = Server(
            terms=terms,
            ask=link.ask,
            online=link.online,
            verify=lambda node, content, made: verify(keys[node], content, made),
            watch=partial(self.show, set()),
        )

    def show(self, seen: set[tuple[int, int, str]], status: ServerStatus) -> None:
        """Say each step of a round once."""
        place = status.round_index, status.attempt, status.step
        if place not in seen:
            seen.add(place)
            say(step=status.step)

    def play(self, out: Path) -> dict[str, Any]:
        """Play the next phase's first round with everybody; write what was told, and the sum."""
        phase, server = self.phases.pop(0), self.server
        state = phase.start(self.params)
        told = {name: np.asarray(leaf) for name, leaf in phase.tell(state).items()}
        people = Cohort(np.arange(server.terms.people), self.plan.task.federation.take)
        total = executor(server)(phase, told, people, phase.first, state.clip_norm)
        update = {name: np.asarray(leaf) for name, leaf in total.update.items()}
        (out / "told").write_bytes(told_to_bytes(told))
        (out / "sum").write_bytes(told_to_bytes(update))
        self.params = phase.absorb(state, Published(dict(update), state.clip_norm)).params
        begun = server.unmasking.begun(phase.first)
        stayed = sorted(begun.survivors) if begun else []
        return {
            "stayed": stayed,
            "abandoned": server.status.abandoned,
            "numbers": sum(leaf.size for leaf in update.values()),
        }

    def train(self, out: Path) -> dict[str, Any]:
        """Play the whole training; return a hash of its parameters."""
        place = records.create_run(out, self.plan.task.settings, "{}", None)
        # A new server knows of no round that was played.
        server = replace(self.server, unmasking=Unmasking(), run=secrets.token_hex(8))
        play_stages(self.plan, place, network=server.network())
        return {"params": hashlib.sha256(place.params_path.read_bytes()).hexdigest()}


def main() -> None:
    path, port = Path(sys.argv[1]), int(sys.argv[2])
    keys = [member.public_key for member in read_server(path)[1].members]
    me = psutil.Process()
    with open_link(path, keys, host=LOCAL, port=port) as link:
        rounds = Rounds(path, link)
        say(rss=me.memory_info().rss)
        for line in sys.stdin:
            word, *rest = line.split()
            began, cpu = time.monotonic(), time.process_time()
            found: dict[str, Any] = {}
            if word == "wait":
                while len(link.online()) < len(keys):
                    time.sleep(0.1)
            elif word == "idle":
                time.sleep(float(rest[0]))
            elif word == "nothing":
                # As long as a real exchange's request and reply, once for each node.
                request = NOTHING + int(rest[1]).to_bytes(8, "big") + bytes(int(rest[0]))
                heard = link.ask(dict.fromkeys(range(len(keys)), request), 600.0, 2**30)
                found = {"heard": sum(1 for _ in heard)}
            elif word == "round":
                found = rounds.play(Path(rest[0]))
            elif word == "train":
                found = rounds.train(Path(rest[0]))
            say(
                done=word,
                seconds=time.monotonic() - began,
                cpu=time.process_time() - cpu,
                rss=me.memory_info().rss,
                peak=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                online=len(link.online()),
                **found,
            )
        say(done="end")
        # Nodes that wait for a server keep no process alive.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
