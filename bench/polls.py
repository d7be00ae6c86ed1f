"""Polls a page at a steady rate over kept connections, every other period of time.

python polls.py URL POLLS_PER_SECOND START PERIOD PERIODS

START is a time of the clock `time.monotonic`, which all processes of a machine share. It prints how
many answers came and what they cost. It runs beside the training that is measured, so it takes as
little processor time as it can: it wakes a hundred times a second, reads the answers and sends
what is due.
"""

import contextlib
import json
import socket
import sys
import time
from urllib.parse import urlsplit

_CONNECTIONS = 40
_TICK = 0.01


def main(url: str, rate: float, start: float, period: float, periods: int) -> None:
    place = urlsplit(url)
    ask = f"GET {place.path}?{place.query} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
    lines = [
        socket.create_connection((place.hostname or "", place.port or 80))
        for _ in range(_CONNECTIONS)
    ]
    for line in lines:
        line.setblocking(False)
    waiting = [False] * _CONNECTIONS
    turn = asked = answered = 0
    cpu = time.process_time()
    for k in range(0, periods, 2):
        begins, already = start + k * period, asked
        time.sleep(max(begins - time.monotonic(), 0.0))
        while (now := time.monotonic() - begins) < period:
            for number, line in enumerate(lines):
                if waiting[number]:
                    with contextlib.suppress(BlockingIOError):
                        # One answer is on its way on each connection, and fits into one packet.
                        answered += line.recv(65536).startswith(b"HTTP/1.1 200")
                        waiting[number] = False
            while asked - already < int(now * rate) and not waiting[turn]:
                lines[turn].sendall(ask)
                waiting[turn] = True
                asked += 1
                # An idle connection is closed by the server after a while: all take turns.
                turn = (turn + 1) % _CONNECTIONS
            time.sleep(_TICK)
    polled = period * ((periods + 1) // 2)
    spent = time.process_time() - cpu
    print(json.dumps({"per_second": answered / polled, "cpu": spent / polled}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
