"""A stranger for the benchmarks: it sends a server what nobody should, or sends it very slowly.

`flood.py HOST PORT CA COUNT SECONDS` sends COUNT wrong requests and prints how many were sent in
the time. `flood.py HOST PORT CA slow SECONDS` keeps 500 connections that send a byte a second.
"""

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from privrec.transport.paths import CHALLENGE, REPLIES, STREAM, TOKEN_HEADER
from privrec.transport.processes import end_with_parent

THREADS, SLOW = 8, 500


def request(line: str, *fields: str, content: bytes = b"") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *fields, "", ""]).encode() + content


JUNK = json.dumps({"key": "x", "challenge": "y", "signature": "00", "after": -1}).encode()
# After these the server keeps the connection.
WRONG = [
    request("GET /v1/nothing"),
    request(f"PUT {STREAM}"),
    request(f"GET /{'x' * 60_000}"),
    request(f"DELETE {CHALLENGE}", f"x: {'y' * 30_000}"),
]
# With these it ends.
FATAL = [
    b"\x00\xff\x00\xff" * 100 + b"\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    request(f"GET {CHALLENGE}", *(f"x{k}: {'y' * 1000}" for k in range(200))),
    request(f"POST {STREAM}", "Content-Length: 4097"),
    request(f"POST {STREAM}", "Content-Length: 4096", content=b"[" * 4096),
    request(f"POST {STREAM}", f"Content-Length: {len(JUNK)}", content=JUNK),
    request(f"POST {STREAM}", "Transfer-Encoding: chunked", content=b"ffffffff\r\n"),
    request(f"POST {REPLIES}/1", f"{TOKEN_HEADER}: x", f"Content-Length: {10**12}"),
    request(f"POST {REPLIES}/1", "Content-Length: 1000000", content=bytes(10**6)),
    request(f"POST {REPLIES}/x", "Content-Length: -1"),
]


def context_of(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def ask(host: str, port: int, context: ssl.SSLContext, number: int) -> int:
    """Send some wrong requests on one connection; return how many."""
    sent = 0
    line = socket.create_connection((host, port), timeout=60)
    with contextlib.suppress(OSError), context.wrap_socket(line, server_hostname=host) as safe:
        for content in WRONG:
            safe.sendall(content)
            sent += 1
            safe.recv(2**16)
        safe.sendall(FATAL[number % len(FATAL)])
        sent += 1
        while safe.recv(2**16):
            pass
    return sent


def flood(host: str, port: int, ca: str, count: int, seconds: float) -> int:
    """Send so many requests, or as many as can be sent in the time; return how many."""
    end, context, numbers = time.monotonic() + seconds, context_of(ca), itertools.count()
    lock, sent = threading.Lock(), 0

    def play() -> None:
        nonlocal sent
        while sent < count and time.monotonic() < end:
            made = 0
            with contextlib.suppress(OSError):
                made = ask(host, port, context, next(numbers))
            with lock:
                sent += made

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(play) for _ in range(THREADS)]:
            done.result()
    return sent


async def slow(host: str, port: int, ca: str, seconds: float) -> int:
    """Keep connections on which a byte comes every second; return how many were opened."""
    end, context, opened = time.monotonic() + seconds, context_of(ca), 0

    async def play(content: bytes) -> None:
        nonlocal opened
        while time.monotonic() < end:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                opened += 1
                for byte in itertools.cycle(content):
                    if reader.at_eof() or writer.is_closing() or time.monotonic() > end:
                        break
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1.0)
                writer.transport.abort()
            await asyncio.sleep(1.0)

    heads = [b"GET /v1/challenge HTTP/1.1\r\nx: " + b"y" * 10**6]
    heads.append(request(f"POST {STREAM}", "Content-Length: 4096", content=b"[" * 4096))
    await asyncio.gather(*(play(heads[k % 2]) for k in range(SLOW)))
    return opened


def main() -> None:
    host, port, ca, count, seconds = sys.argv[1:]
    end_with_parent(grace=0.0)
    if count == "slow":
        print(asyncio.run(slow(host, int(port), ca, float(seconds))), flush=True)
    else:
        print(flood(host, int(port), ca, int(count), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
