"""Five brokers are drained and started again, one after the other: nothing is lost, nothing of QoS 2 comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.rolling import RollingRestart


@pytest.mark.timeout(240)
async def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    rolling = RollingRestart(5, tmp_path, seed=1, say=said.append)
    verdict = await rolling.run(rate=10, publishers=10, subscribers=12)
    story = "\n".join([*said, *verdict.lines(), f"logs and data are in {tmp_path}"])
    assert verdict.is_good, story
    assert not verdict.late, story
    assert verdict.acknowledged > 500, story
    assert sum(one.connects for one in (*rolling.publishers, *rolling.subscribers)) >= 50, story
    for broker in rolling.brokers:
        assert "Traceback" not in broker.log, f"b{broker.number}:\n{broker.log}"
