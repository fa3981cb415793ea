"""The short version of `python -m tests.chaos`: five brokers with a braid key, forty seconds of faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.soak import Options, Soak


@pytest.mark.timeout(240)
async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    options = Options(brokers=5, clients=36, seconds=40.0, every_s=1.5, quiet_s=90.0, groups=4, seed=1)
    said: list[str] = []
    soak = Soak(options, tmp_path, said.append)
    verdict = await soak.run()
    story = "\n".join([*said, *verdict.lines(), f"logs and data are in {tmp_path}"])
    assert verdict.is_good, story
    assert verdict.acknowledged > 500, story
    assert verdict.deliveries > verdict.acknowledged, story
    kills = sum(broker.kills for broker in soak.brokers.all) - options.brokers
    assert kills >= 2, story
    for broker in soak.brokers.all:
        assert "Traceback" not in broker.log, f"b{broker.number}:\n{broker.log}"
