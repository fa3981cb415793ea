"""`python -m bench.journal`: what the store costs the loop, and how long a broker waits for it at its start.

Times are the process's own, so that what else the machine does falls out of them; starts are also given by the clock.
"""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from braidmq.broker.broker import Broker
from braidmq.broker.journal_store import JournalStore
from braidmq.broker.limits import Limits
from braidmq.broker.message import Delivery, Message
from braidmq.broker.subscription import Subscribed
from braidmq.journal.compaction import compact
from braidmq.mqtt.wire import string

PAYLOAD = bytes(100)
TOPICS = 100
CALL_US_MAX, COMMIT_US_MAX, START_S_MAX = 2.0, 30.0, 5.0
"""The targets: a call, the commit of a small tick, and a start with a million messages."""

console = Console()


class Cost(msgspec.Struct, frozen=True):
    what: str
    value: float
    unit: str
    target: float | None = None


def new_message(number: int) -> Message:
    topic = f"plant/line{number % TOPICS}/state"
    return Message(topic, string(topic), PAYLOAD, 1, sender="device")


def call_costs(folder: Path, count: int) -> list[Cost]:
    """Calls are made as in ticks of a thousand deliveries, commits as in ticks of one."""
    store = JournalStore(folder)
    store.save_session(store.next_row(), "c", 3600, None, "")
    deliveries = [Delivery(new_message(number), 1, packet_id=number % 65535 + 1) for number in range(count)]
    saved = dropped = 0.0
    for begin in range(0, count, 1000):
        began_at = time.process_time()
        for one in deliveries[begin : begin + 1000]:
            store.save_delivery(1, one)
        saved += time.process_time() - began_at
        store.commit()
        began_at = time.process_time()
        for one in deliveries[begin : begin + 1000]:
            store.drop_delivery(one)
        dropped += time.process_time() - began_at
        store.commit()
    began_at = time.process_time()
    for one in deliveries:
        store.save_delivery(1, one)
        store.commit()
        store.drop_delivery(one)
        store.commit()
    ticks = time.process_time() - began_at
    position = store.journal.position
    store.close()
    return [
        Cost("save_delivery", saved / count * 1e6, "µs", CALL_US_MAX),
        Cost("drop_delivery", dropped / count * 1e6, "µs", CALL_US_MAX),
        Cost("commit of a small tick", (ticks - saved - dropped) / count / 2 * 1e6, "µs", COMMIT_US_MAX),
        Cost("written for each delivery, with its acknowledgement", position / count / 2, "bytes"),
    ]


def start_costs(folder: Path, name: str, sessions: int, messages: int) -> list[Cost]:
    """A broker starts on what waits: first all of it is behind the snapshot, then in it."""
    store = JournalStore(folder)
    for number in range(sessions):
        row = store.next_row()
        store.save_session(row, f"client{number}", 0xFFFFFFFF, 4e9, "")
        store.save_subscription(row, f"plant/{number}/#", Subscribed(1))
    for number in range(messages):
        store.save_delivery(number % sessions + 1, Delivery(new_message(number), 1))
        if number % 100 == 99:
            store.commit()
    store.commit()
    found = [_start(folder, store, f"{name}, as they came", messages)]
    store.journal.seal()
    began_at = time.process_time()
    compact(store.path, store.journal.position)
    found.append(Cost(f"{name}: compaction", time.process_time() - began_at, "s"))
    found.append(_start(folder, store, f"{name}, in a snapshot", messages))
    return found


def _start(folder: Path, store: JournalStore, name: str, messages: int) -> Cost:
    store.close()
    gc.collect()
    began_at = time.monotonic()
    store.__init__(folder)  # type: ignore[misc]
    limits = Limits(queue_messages_max=messages, queue_bytes_max=1 << 40)
    broker = Broker(clock=time.monotonic, wall=time.time, limits=limits, store=store)
    spent_s = time.monotonic() - began_at
    assert broker.metrics.queued_messages == messages
    return Cost(name, spent_s, "s", START_S_MAX)


def main(
    messages: Annotated[int, typer.Option(min=1000, help="How many wait at the start.")] = 1_000_000,
    calls: Annotated[int, typer.Option(min=1000, help="How many deliveries are saved and dropped.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """The costs of the store's calls and commits, and of a start."""
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as name:
        folder = Path(name)
        results = call_costs(folder / "calls", calls)
        results += start_costs(folder / "one", f"start, {messages:,} messages, 1 session", 1, messages)
        results += start_costs(folder / "many", f"start, {messages:,} messages, 100 sessions", 100, messages)
    if as_json:
        print(msgspec.json.encode(results).decode())
        return
    table = Table("", "", "target", title="What the store costs")
    for one in results:
        reached = "" if one.target is None else "[green]reached[/]" if one.value <= one.target else "[red]missed[/]"
        target = "" if one.target is None else f"≤ {one.target:g} {one.unit} {reached}"
        table.add_row(one.what, f"{one.value:.2f} {one.unit}", target)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
