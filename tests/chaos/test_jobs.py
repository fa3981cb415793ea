"""The short version of `python -m tests.chaos.jobs`: members and a broker are killed while jobs come. And its judge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.chaos.job_publisher import JobPublisher
from tests.chaos.jobs import JobOptions, JobRun
from tests.chaos.member_process import Line


@pytest.mark.timeout(240)
def test_jobs_are_done_though_members_that_have_them_are_killed(tmp_path: Path) -> None:
    verdict = asyncio.run(JobRun(JobOptions(), tmp_path).run())
    assert verdict.is_good, verdict.describe()
    assert verdict.jobs > 100, verdict.describe()
    assert verdict.member_kills >= 5, verdict.describe()
    assert verdict.broker_kills >= 1, verdict.describe()
    assert verdict.unacknowledged >= 1, verdict.describe()


STARTED = Line("started", 1.0)
HAS, AGAIN = Line("has", 2.0, "p0-1", 1), Line("has", 5.0, "p0-1", 7)
ACKNOWLEDGED, LATER = Line("acknowledged", 3.0, "p0-1", 1), Line("started", 4.0)


@pytest.mark.parametrize(
    ("qos", "first", "second", "broker_kills", "is_good"),
    [
        (1, [STARTED, HAS, ACKNOWLEDGED], [], [], True),
        (1, [], [], [], False),
        (1, [STARTED, HAS, ACKNOWLEDGED], [STARTED, AGAIN], [], False),
        (1, [STARTED, HAS, ACKNOWLEDGED, LATER], [STARTED, AGAIN], [], False),
        (1, [STARTED, HAS, LATER], [STARTED, AGAIN], [], True),
        (1, [STARTED, HAS, ACKNOWLEDGED], [STARTED, AGAIN], [(1, 3.5, 4.0)], True),
        (1, [STARTED, HAS, ACKNOWLEDGED], [STARTED, AGAIN], [(2, 3.5, 4.0)], False),
        (1, [STARTED, HAS, ACKNOWLEDGED], [STARTED, AGAIN], [(1, 4.5, 4.8)], False),
        (2, [STARTED, HAS, LATER], [STARTED, AGAIN], [], False),
    ],
)
def test_what_was_done_is_judged(
    tmp_path: Path,
    qos: int,
    first: list[Line],
    second: list[Line],
    broker_kills: list[tuple[int, float, float]],
    is_good: bool,
) -> None:
    for name, lines in (("m1", first), ("m2", second)):
        (tmp_path / f"{name}.jobs").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = JobRun(JobOptions(), tmp_path)
    publisher = JobPublisher(0, "p0", 1.0)
    publisher.acknowledged["p0-1"] = qos
    run.publishers, run.broker_kills = [publisher], broker_kills
    assert run.judge().is_good is is_good
