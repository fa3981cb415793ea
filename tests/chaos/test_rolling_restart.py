"""Five brokers are drained and started again, one after another: nothing is lost, and nothing of QoS 2 comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.report import Report
from tests.chaos.rolling import RollingRestart
from tests.chaos.soak import Options


@pytest.mark.timeout(240)
async def test_a_rolling_restart_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    options = Options(brokers=5, clients=22, rate=10, seed=1, settle_s=0.0, copies=1, roaming=1.0, roam_s=1e6, kinds=())
    rolling = RollingRestart(options, tmp_path, said.append)
    verdict = await rolling.run()
    story = "\n".join([*said, *Report(verdict).lines(), f"logs and data are in {tmp_path}"])
    assert verdict.is_good, story
    assert verdict.acknowledged > 500, story
    assert sum(one.connects for one in verdict.clients) >= 50, story
    for broker in rolling.brokers.all:
        assert "Traceback" not in broker.log, f"b{broker.number}:\n{broker.log}"
