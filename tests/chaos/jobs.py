"""`python -m tests.chaos.jobs`: members of a shared subscription are killed while jobs come, and so are brokers.

Three broker processes, members that are processes of their own (`member_process`), publishers at all brokers. In the
end each job of QoS 2 was done exactly once, each of QoS 1 at least once, and again only if who had it was killed before
it had acknowledged it; or a broker was, before it could know.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.pubsub.registry import METHOD_DEFAULT
from tests.chaos.brokers import Brokers
from tests.chaos.job_publisher import JobPublisher
from tests.chaos.member_process import Line, arguments_of, lines_of

BROKERS = 3
KNOWN_S = 1.0
"""How long before a broker was killed what it was told may not have reached the others, or its store."""
DONE_S = 90.0
JOBS = ".jobs"
"""What the names of files end with in which members write what they do."""
QUIET_S = 1.5
MEMBER_DOWN_S = 0.2
BROKER_DOWN_S = 0.8


@dataclass(frozen=True)
class JobOptions:
    seconds: float = 4.0
    seed: int = 1
    members: int = 6
    window: int = 4
    work_s: float = 0.02
    rate: float = 50.0
    """Jobs a second of each publisher."""
    kill_s: float = 0.35
    """The time between two members that are killed."""
    broker_kill_s: float = 1.5
    """The time between two brokers that are."""


@dataclass
class Holding:
    """A job at a member, from when it had it until it was acknowledged."""

    member: str
    broker: int
    since: float
    acknowledged_at: float | None = None
    is_member_killed: bool = False
    """Whether the process that had it ended before the next thing that the member wrote."""


@dataclass
class JobVerdict:
    jobs: int = 0
    missing: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    """Of QoS 2."""
    unexcused: list[str] = field(default_factory=list)
    """Of QoS 1: done again though nobody who had it was killed."""
    repeated: int = 0
    """Of QoS 1, for a reason."""
    unacknowledged: int = 0
    """Jobs that killed members had not acknowledged."""
    failures: list[str] = field(default_factory=list)
    """Of publishers."""
    member_kills: int = 0
    broker_kills: int = 0

    @property
    def is_good(self) -> bool:
        return self.jobs > 0 and not (self.missing or self.twice or self.unexcused or self.failures)

    def describe(self) -> str:
        return (
            f"{self.jobs:,} jobs; {self.member_kills} members and {self.broker_kills} brokers killed, with "
            f"{self.unacknowledged} jobs that were not acknowledged; QoS 1: {self.repeated} done again for that "
            f"reason, {len(self.unexcused)} without one {self.unexcused[:5]}; QoS 2: {len(self.twice)} done twice "
            f"{self.twice[:5]}; {len(self.missing)} missing {self.missing[:5]}; {self.failures}"
        )


class JobRun:
    def __init__(self, options: JobOptions, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._chance = random.Random(options.seed)
        self._brokers = Brokers(BROKERS, folder, METHOD_DEFAULT, "key", copies=2)
        self.broker_kills: list[tuple[int, float, float]] = []
        """Which one, when, and when it was there again."""
        self.publishers: list[JobPublisher] = []
        self._members: dict[str, subprocess.Popen[bytes]] = {}
        self._member_kills = 0

    # The run

    async def run(self) -> JobVerdict:
        await self._brokers.start()
        try:
            for number in range(self._options.members):
                self._start_member(f"m{number}")
            await self._until(lambda: all(self._lines(name) for name in self._members), "members start")
            await asyncio.sleep(1.0)
            rate = self._options.rate
            self.publishers = [JobPublisher(one.port, f"p{one.number}", rate) for one in self._brokers.all]
            for publisher in self.publishers:
                publisher.start()
            await asyncio.gather(self._kill_members(), self._kill_brokers())
            for publisher in self.publishers:
                publisher.is_over = True
            await self._until(lambda: not any(one.is_alive() for one in self.publishers), "publishers end")
            await self._until(lambda: not self._missing(), "all jobs are done", fails=False)
            await asyncio.sleep(QUIET_S)
            return self.judge()
        finally:
            for process in self._members.values():
                process.kill()
                process.wait()
            await self._brokers.stop()

    async def _until(self, is_so: Callable[[], bool], what: str, fails: bool = True) -> None:
        ends_at = time.monotonic() + DONE_S
        while not is_so():
            if time.monotonic() > ends_at:
                if fails:
                    raise TimeoutError(what)
                return
            await asyncio.sleep(0.1)

    def _broker_of(self, name: str) -> int:
        return int(name[1:]) % BROKERS

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{JOBS}"

    def _lines(self, name: str) -> list[Line]:
        return lines_of(self._path(name))

    def _start_member(self, name: str) -> None:
        port = self._brokers.all[self._broker_of(name)].port
        command = arguments_of(port, name, self._options.window, self._options.work_s, self._path(name))
        self._members[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    async def _kill_members(self) -> None:
        ends_at = time.monotonic() + self._options.seconds
        while time.monotonic() < ends_at:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._options.kill_s)
            name = self._chance.choice(list(self._members))
            self._members[name].kill()
            self._members[name].wait()
            self._member_kills += 1
            await asyncio.sleep(MEMBER_DOWN_S)
            self._start_member(name)

    async def _kill_brokers(self) -> None:
        ends_at = time.monotonic() + self._options.seconds
        while time.monotonic() + self._options.broker_kill_s < ends_at:
            await asyncio.sleep(self._options.broker_kill_s)
            broker = self._chance.choice(self._brokers.all)
            at = time.time()
            await broker.kill()
            await asyncio.sleep(BROKER_DOWN_S)
            await broker.start()
            self.broker_kills.append((broker.number, at, time.time()))

    # What came of it

    def _holdings(self) -> dict[str, list[Holding]]:
        """By job: who had it, in the order of time."""
        found: dict[str, list[Holding]] = {}
        for path in sorted(self._folder.glob(f"*{JOBS}")):
            name = path.name.removesuffix(JOBS)
            open_: dict[tuple[str, int], Holding] = {}
            for line in self._lines(name):
                if line.what == "started":
                    for holding in open_.values():
                        holding.is_member_killed = True
                    open_.clear()
                elif line.what == "has":
                    holding = open_[line.job, line.packet_id] = Holding(name, self._broker_of(name), line.at)
                    found.setdefault(line.job, []).append(holding)
                elif line.what == "acknowledged" and (line.job, line.packet_id) in open_:
                    open_.pop((line.job, line.packet_id)).acknowledged_at = line.at
        for holdings in found.values():
            holdings.sort(key=lambda one: one.since)
        return found

    def _taken(self) -> dict[str, int]:
        return {job: qos for publisher in self.publishers for job, qos in publisher.acknowledged.items()}

    def _missing(self) -> list[str]:
        done = self._holdings()
        return [job for job in self._taken() if job not in done]

    def judge(self) -> JobVerdict:
        holdings, taken = self._holdings(), self._taken()
        sent_again = {job for publisher in self.publishers for job in publisher.repeated}
        verdict = JobVerdict(len(taken), self._missing())
        verdict.failures = [f"{one.name}: {one.failure}" for one in self.publishers if one.failure]
        verdict.member_kills, verdict.broker_kills = self._member_kills, len(self.broker_kills)
        verdict.unacknowledged = sum(one.is_member_killed for some in holdings.values() for one in some)
        times = Counter({job: len(some) for job, some in holdings.items()})
        for job, count in times.items():
            if count == 1 or job not in taken:
                continue
            if taken[job] == 2:
                verdict.twice.append(f"{job}: {holdings[job]}")
            elif job in sent_again or all(self._is_excused(job, one) for one in holdings[job][:-1]):
                verdict.repeated += 1
            else:
                verdict.unexcused.append(f"{job}: {holdings[job]}")
        return verdict

    def _is_excused(self, job: str, holding: Holding) -> bool:
        """Whether a job may be done again after a member has had it: that was killed before it had acknowledged it, or
        the broker of the member, or of the job, before it could know."""
        if holding.is_member_killed:
            return True
        concerned = (holding.broker, int(job.partition("-")[0][1:]))
        known_at = (holding.acknowledged_at or time.time()) + KNOWN_S
        kills = [one for one in self.broker_kills if one[0] in concerned]
        return any(at <= known_at and until >= holding.since for _, at, until in kills)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.jobs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of kills under load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--members", type=int, default=9)
    given = parser.parse_args()
    options = JobOptions(seconds=given.seconds, seed=given.seed, members=given.members, broker_kill_s=5.0)
    with tempfile.TemporaryDirectory(prefix="braidmq-jobs-") as folder:
        verdict = asyncio.run(JobRun(options, Path(folder)).run())
    print(verdict.describe())
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
