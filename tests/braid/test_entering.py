"""How long a broker that starts again takes to enter its braid: not longer because another one is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from .journeys.faulty_sites import FaultySites

COUNT = 5
DOWN_S = 3.0
STEP_S = 0.05


def entering_s(sites: FaultySites, number: int) -> float:
    """How long one that has just started takes until clients find their sessions there."""
    began = sites.sim.now
    sites.start(number)
    while sites[number].braid.roaming.takeovers.awaits_entry and sites.sim.now < began + 30:
        sites.run(STEP_S)
    return sites.sim.now - began


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("method", "within_s"), [("covers", 1.5), ("suzaku", 1.5)])
def test_alone(tmp_path: Path, method: str, within_s: float, seed: int) -> None:
    sites = FaultySites(tmp_path, COUNT, seed, unreliable=False, method=method)
    sites.run(5)
    number = 1 + seed
    sites.crash(number)
    sites.run(DOWN_S)
    assert entering_s(sites, number) <= within_s


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("method", "within_s"), [("covers", 2.0), ("suzaku", 2.5)])
def test_while_another_one_is_gone(tmp_path: Path, method: str, within_s: float, seed: int) -> None:
    """Any of the others: also its neighbours in the order of keys, or the broker that it asks first."""
    sites = FaultySites(tmp_path, COUNT, seed, unreliable=False, method=method)
    sites.run(5)
    number = 1 + seed % (COUNT - 1)
    other = (number + 1 + seed // 2) % COUNT
    sites.crash(number)
    sites.run(1.0)
    sites.crash(other if other != number else 0)
    sites.run(DOWN_S)
    assert entering_s(sites, number) <= within_s


@pytest.mark.parametrize("seed", range(4))
def test_while_a_path_is_cut(tmp_path: Path, seed: int) -> None:
    """It takes a moment more: until there is a way round."""
    sites = FaultySites(tmp_path, COUNT, seed, unreliable=False)
    sites.run(5)
    number, other = 1 + seed, seed
    sites.crash(number)
    sites.run(DOWN_S)
    sites.cut({(number, other), (other, number)})
    assert entering_s(sites, number) <= 4.0
