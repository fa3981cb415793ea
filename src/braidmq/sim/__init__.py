"""Protocols in virtual time, under faults, as a function of a seed.

    sim = Simulator(seed=7, network=Faults.parse("loss=0.02,clog=0.01").over(Uniform(0.01, 0.05)))
    host = sim.host(0)                                    # a `braidmq.host.Host`
    sim.run(until=60.0)

The world: `engine` with `host`, `task`, `timeline` and `garbage`; `network` and `clocks` with their faults; `trace`,
`journey` and `picture` to look at a run; `checkers` of what must hold; `layouts` of networks too large to grow.

`trials` are of publish/subscribe methods on such networks, with figures and checks.
"""

from braidmq.sim.engine import SimHost, SimTask, SimulationError, Simulator
from braidmq.sim.network import Constant, Faults, FaultsError, Network, Uniform
from braidmq.sim.trace import Trace

__all__ = [
    "Constant",
    "Faults",
    "FaultsError",
    "Network",
    "SimHost",
    "SimTask",
    "SimulationError",
    "Simulator",
    "Trace",
    "Uniform",
]
