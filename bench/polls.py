"""Polls a page at a steady rate over kept connections, and prints how many answers came.

python polls.py URL POLLS_PER_SECOND SECONDS
"""

import json
import selectors
import socket
import sys
import time
from urllib.parse import urlsplit

_CONNECTIONS = 20


def main(url: str, rate: float, seconds: float) -> None:
    place = urlsplit(url)
    ask = f"GET {place.path}?{place.query} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
    lines = [
        socket.create_connection((place.hostname or "", place.port or 80))
        for _ in range(_CONNECTIONS)
    ]
    answers, waiting = selectors.DefaultSelector(), [0] * _CONNECTIONS
    for k, line in enumerate(lines):
        answers.register(line, selectors.EVENT_READ, k)
    # A connection that is never used is closed by the server after some seconds: all take turns.
    turn = asked = answered = 0
    began, cpu = time.monotonic(), time.process_time()
    while (now := time.monotonic() - began) < seconds:
        due = int(now * rate)
        while asked < due and not waiting[turn]:
            lines[turn].sendall(ask)
            waiting[turn] = 1
            asked += 1
            turn = (turn + 1) % _CONNECTIONS
        for key, _ in answers.select(timeout=0.002):
            # One answer is on its way on each connection, and it fits into one packet.
            if key.fileobj.recv(65536).startswith(b"HTTP/1.1 200"):  # type: ignore[union-attr]
                answered += 1
            waiting[key.data] = 0
    took = time.monotonic() - began
    spent = time.process_time() - cpu
    print(json.dumps({"answered": answered, "per_second": answered / took, "cpu": spent / took}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
