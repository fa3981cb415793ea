"""Scopes: publications that stay inside a cluster.

A client says so by the MQTT 5 user property `scope`, the path of a cluster, or by the topic: `$in/<cluster>/<topic>`.
There the cluster is as many levels as name one that is known; `$in/<cluster>/-/<topic>` says where it ends. `.` is the
cluster of the broker that the client is connected to.

From then on the publication has its plain topic, and its scope in that property, wherever it is: on the way, in the
history, in the queue of a session that moves. So `scope_of` is the only way to find it out.
"""

from __future__ import annotations

from braidmq.braid.interest.clusters import Clusters
from braidmq.broker.federation import ScopeError
from braidmq.keys import cluster_problem, is_within
from braidmq.mqtt.packets import Publish, Will
from braidmq.mqtt.properties import PUBLISH, read_properties
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.wire import Reader, string, varint

PROPERTY = "scope"
PREFIX = "$in/"
END = "-"
"""The level behind the cluster, where it could be read in two ways."""

OWN = "."

_MARK = b"\x26" + string(PROPERTY)


def scope_of(forward: bytes) -> str | None:
    """The cluster that a publication with these properties stays in; None if it is for all."""
    if _MARK not in forward:
        return None
    properties = read_properties(Reader(varint(len(forward)) + forward), PUBLISH)
    return next((value for name, value in properties.user_properties if name == PROPERTY), None)


def is_confined(message: bytes) -> bool:
    """Whether a message between brokers, as it travels, may hold a publication that stays in a cluster."""
    return _MARK in message


def may_see(cluster: str, forward: bytes) -> bool:
    """Whether a broker in a cluster may have a publication with these properties."""
    return not forward or is_within(cluster, scope_of(forward))


class Scopes:
    """Reads the scopes of what clients here publish."""

    def __init__(self, clusters: Clusters, can_keep: bool) -> None:
        """`can_keep` says whether the delivery method of the braid can keep a publication inside a cluster."""
        self._clusters = clusters
        self._can_keep = can_keep

    def resolve(self, packet: Publish | Will) -> None:
        """Gives a publication its plain topic, and the property if it had a scope without it; or a ScopeError."""
        pairs = packet.properties.user_properties
        named = [value for name, value in pairs if name == PROPERTY]
        if not named and not packet.topic.startswith(PREFIX):
            return
        if not self._can_keep:
            text = "the delivery method of this braid cannot keep a publication inside a cluster"
            raise ScopeError(
                Reason.IMPLEMENTATION_SPECIFIC_ERROR, f"{text}: covers, adaptive, relayfree and locality can"
            )
        if len(named) > 1:
            raise ScopeError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, "more than one property scope: give one of them")
        scope = self._known(named[0], Reason.IMPLEMENTATION_SPECIFIC_ERROR) if named else ""
        if packet.topic.startswith(PREFIX):
            cluster, topic = self._split(packet.topic)
            if scope and scope != cluster:
                text = f"the topic is for the cluster {cluster!r}, and the property scope says {scope!r}"
                raise ScopeError(Reason.TOPIC_NAME_INVALID, text)
            scope, packet.topic = cluster, topic
        if packet.retain:
            text = "a publication that stays inside a cluster cannot be retained: leave out the one or the other"
            raise ScopeError(Reason.IMPLEMENTATION_SPECIFIC_ERROR, text)
        kept = [pair if pair[0] != PROPERTY else (PROPERTY, scope) for pair in pairs]
        packet.properties.user_properties = kept if named else [*kept, (PROPERTY, scope)]

    def _known(self, path: str, reason: Reason) -> str:
        """The cluster that a path names."""
        if path == OWN:
            if not self._clusters.own:
                raise ScopeError(reason, "this broker is in no cluster: set braid.cluster, or name another one")
            return self._clusters.own
        problem = cluster_problem(path) if path else "it is empty"
        if problem is not None:
            raise ScopeError(reason, f"{path!r} is no cluster: {problem}; expected a path such as cloud1/edge1")
        if path not in self._clusters:
            text = f"no broker of the braid is in the cluster {path!r}: `braidmq ring` shows which clusters there are"
            raise ScopeError(reason, text)
        return path

    def _split(self, full: str) -> tuple[str, str]:
        """Cluster and topic of `$in/<cluster>/<topic>`."""
        levels = full.removeprefix(PREFIX).split("/")
        if END in levels:
            count = levels.index(END)
            rest = levels[count + 1 :]
        else:
            count = self._known_levels(levels[:-1])
            rest = levels[count:]
        topic = "/".join(rest)
        if not topic or topic.startswith(PREFIX):
            text = f"{full!r} has no topic behind the cluster: expected $in/<cluster>/<topic>, as in $in/cloud1/tide"
            raise ScopeError(Reason.TOPIC_NAME_INVALID, text)
        return self._known("/".join(levels[:count]), Reason.TOPIC_NAME_INVALID), topic

    def _known_levels(self, levels: list[str]) -> int:
        """How many of the first levels name a cluster, as many as possible; 1 if none do."""
        count = 1
        while count < len(levels) and "/".join(levels[: count + 1]) in self._clusters:
            count += 1
        return count
