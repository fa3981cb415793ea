"""What must hold of a whole network: a checker returns what is wrong, in words.

`ring`, `skip_graph`, `flexible` and `pubsub` look once a network is quiet, `watch` looks all through a run.
"""

from braidmq.sim.checkers.complaints import Complaints

__all__ = ["Complaints"]
