"""Proving that a part of a range is empty, without the message.

What lies before the first node that is known in a range is proven by a node outside of it, which has no use for the
message: it gets a `ProbeRange` without it. If a node does stand there, the sender is asked for the message
(`BodyWanted`).
"""

from __future__ import annotations

import msgspec

from braidmq.keys import Key
from braidmq.overlay.key_ranges import KeyRange
from braidmq.overlay.overlay import Overlay
from braidmq.overlay.peers import Peer
from braidmq.overlay.ranges.answering import Answers, covered_by
from braidmq.overlay.ranges.messages import AVOID_MAX, BodyWanted, ProbeRange
from braidmq.overlay.ranges.splitting import Cut, owned_part, split
from braidmq.overlay.ring import owns


class Prober:
    """One host's part in proving that ranges are empty."""

    def __init__(self, overlay: Overlay, answers: Answers) -> None:
        self._overlay = overlay
        self._host = overlay.host
        self._answers = answers

    def pass_on(self, probe: ProbeRange, gone: tuple[Key, ...]) -> None:
        """Answers for what is empty, sends on what others know better, and asks for the message where a node is.

        `gone` are the nodes that it was for, and that do not stand here.
        """
        view, now = self._overlay.view, self._host.now()
        avoid = tuple(dict.fromkeys((*probe.avoid, *gone)))[-AVOID_MAX:]
        if probe.only_head and probe.ranges:
            self.prove_head(msgspec.structs.replace(probe, avoid=avoid))
            return
        covered: list[KeyRange] = []
        wanted: list[tuple[Peer, KeyRange]] = []
        for low, high in probe.ranges:
            parts = split(view, low, high, Cut.RIGHT, now, avoid)
            if parts.keys:
                wanted.append((view.own[parts.keys[0]].me, (low, high)))
                continue
            covered += parts.covered
            for peer, piece in (*parts.pieces, *parts.heads):
                if low <= peer.key < high:
                    wanted.append((peer, piece))
                else:
                    onward = (probe.root, probe.number, probe.attempt, (piece,), probe.hops + 1, (peer.key,), avoid)
                    self._host.send(peer.address, ProbeRange(*onward))
        if covered:
            self._answers.give(covered_by(probe, covered, ()), probe.root)
        if wanted:
            self._host.send(probe.root, BodyWanted(probe.number, probe.attempt, tuple(wanted), probe.hops))

    def prove_head(self, probe: ProbeRange) -> None:
        """Answers for what lies before the first node of a range, if that is this host's; else asks whose it is."""
        view = self._overlay.view
        low, high = probe.ranges[0]
        own = view.own_up_to(low)
        step = view.step_towards(low, self._host.now(), avoid=probe.avoid)
        if step is not None:
            onward = msgspec.structs.replace(probe, hops=probe.hops + 1, to=(step.peer.key,))
            self._host.send(step.peer.address, onward)
        elif own is not None and own.me.key != low and owns(own, low):
            self._answers.give(covered_by(probe, [owned_part(own, low, high)], ()), probe.root)
