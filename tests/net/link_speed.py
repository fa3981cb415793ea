"""What security costs: messages and bytes a second over one link between two processes.

    python -m tests.net.link_speed

A rate is that of the slower end if each has a core of its own: messages by the processor time that they took there.
So what else the machine does hardly counts. The median of some rounds is shown.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import trustme
import uvloop

from braidmq.host import Address, Message, Service, handles
from braidmq.net import NetHost, Security

ROUNDS = 5
ROUND_S = 0.7
SIZES = ((16, 500), (16, 1), (256, 200), (4_096, 50), (65_536, 16))
"""(bytes of a message, messages a frame)"""
FRAMES_A_CALL = 8


class Data(Message):
    body: bytes


class Sync(Message):
    """Asks for the processor time of the receiver, and tells it."""

    cpu_s: float


class Sink(Service):
    @handles(Data)
    def on_data(self, origin: Address, data: Data) -> None:
        return None

    @handles(Sync)
    def on_sync(self, origin: Address, sync: Sync) -> Sync:
        return Sync(time.process_time())


def receive(security: dict[str, Security], addresses: Connection) -> None:
    """Listens, once a kind, until the other end of the pipe is closed."""

    async def run() -> None:
        hosts = [NetHost("127.0.0.1:0", [Data, Sync], security=kind) for kind in security.values()]
        for host in hosts:
            host.serve(Sink())
            await host.start()
        addresses.send([host.address for host in hosts])
        await asyncio.to_thread(addresses.poll, None)
        for host in hosts:
            await host.stop()

    uvloop.run(run())


async def measure(host: NetHost, to: str, size: int, frame_messages: int) -> float:
    """Messages a second; two calls are under way at a time, so that neither side waits for the other."""
    question = Sync(0.0)
    there_s: float = (await host.call(to, question, 30.0)).cpu_s
    here_s = time.process_time()
    message = Data(bytes(size))
    sent = 0
    begin = time.perf_counter()
    calls: list[asyncio.Task[object]] = []
    while time.perf_counter() - begin < ROUND_S:
        for _ in range(FRAMES_A_CALL):
            for _ in range(frame_messages):
                host.send(to, message)
            sent += frame_messages
            await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(host.call(to, question, 30.0)))
        if len(calls) > 2:
            await calls.pop(0)
    await asyncio.gather(*calls)
    assert host.counters().dropped == 0
    here_s = time.process_time() - here_s
    there_s = (await host.call(to, question, 30.0)).cpu_s - there_s
    return sent / max(here_s, there_s)


async def compare(security: dict[str, Security], addresses: list[str]) -> None:
    hosts = {name: NetHost("127.0.0.1:0", [Data, Sync], security=kind) for name, kind in security.items()}
    for host in hosts.values():
        await host.start()
    print(f"{'bytes':>7} {'a frame':>8}" + "".join(f"{name:>28}" for name in security))
    for size, frame_messages in SIZES:
        rates: dict[str, list[float]] = {name: [] for name in security}
        for _ in range(ROUNDS):
            for (name, host), to in zip(hosts.items(), addresses, strict=True):
                rates[name].append(await measure(host, to, size, frame_messages))
        medians = {name: statistics.median(found) for name, found in rates.items()}
        cells = (f"{rate:>12,.0f}/s {rate * size / 1e6:>8,.1f} MB/s" for rate in medians.values())
        print(f"{size:>7} {frame_messages:>8}" + "".join(f"{cell:>28}" for cell in cells), flush=True)
    for host in hosts.values():
        await host.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        paths = [Path(directory) / name for name in ("crt", "key", "ca")]
        pems = (certificate.cert_chain_pems[0], certificate.private_key_pem, authority.cert_pem)
        for path, pem in zip(paths, pems, strict=True):
            pem.write_to_path(str(path))
        security = {"none": Security.none(), "key": Security.key(bytes(range(32))), "tls": Security.tls(*paths)}
        ours, theirs = multiprocessing.Pipe()
        receiver = multiprocessing.get_context("fork").Process(target=receive, args=(security, theirs))
        receiver.start()
        try:
            uvloop.run(compare(security, ours.recv()))
        finally:
            ours.send(None)
            receiver.join()


if __name__ == "__main__":
    main()
