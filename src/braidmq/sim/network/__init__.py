"""The network between simulated hosts: how long a message takes (`delays`), and what may befall it (`faults`).

`words` has the same as a person writes it: `Faults.parse("loss=0.02,clog=0.01").over(Constant(0.01))`.
"""

from braidmq.sim.network.delays import ClusterDelays, Constant, Network, SampledDelays, Uniform, wide_area
from braidmq.sim.network.faults import Clog, CutPairs, Duplication, Loss, OneWayPartition, Partition, Reordering, Slow
from braidmq.sim.network.words import Faults, FaultsError, position_of

__all__ = [
    "Clog",
    "ClusterDelays",
    "Constant",
    "CutPairs",
    "Duplication",
    "Faults",
    "FaultsError",
    "Loss",
    "Network",
    "OneWayPartition",
    "Partition",
    "Reordering",
    "SampledDelays",
    "Slow",
    "Uniform",
    "position_of",
    "wide_area",
]
