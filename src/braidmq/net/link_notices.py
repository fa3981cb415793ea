"""What people are told of links: each thing once, not at each try.

A peer that is lost is told of when it is lost and when it is back, a fault when it is met. What happens again within
`notice_s` is told at debug level.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from braidmq.bounded import BoundedDict
from braidmq.net.bounds import Bounds
from braidmq.net.link import Link
from braidmq.net.peer import PeerState

NOTICES_MAX = 256
"""Faults that are remembered as told; the one that was met least recently goes."""

_log = logging.getLogger("braidmq.net")


class LinkNotices:
    def __init__(self, bounds: Bounds, describe: Callable[[], str]) -> None:
        """`describe` says who this host is."""
        self._bounds = bounds
        self._describe = describe
        self._told: BoundedDict[tuple[str, str], float] = BoundedDict(NOTICES_MAX)
        """When a fault was told of a peer."""

    def fault(self, link: Link, text: str, now: float) -> None:
        """A link is closed because of a fault."""
        about = (link.address or link.where.partition(" ")[0], text)
        told_at = self._told.get(about, float("-inf"))
        is_news = now - told_at > self._bounds.notice_s
        self._told.renew(about, now if is_news else told_at)
        level = logging.WARNING if is_news else logging.DEBUG
        _log.log(level, "%s closed the link to %s: %s", self._describe(), link.describe(), text)
        if link.peer is not None:
            link.peer.is_lost = True  # that is told with it

    def linked(self, peer: PeerState, name: str) -> None:
        """There is a link to a peer, for the first time or again."""
        is_news = peer.is_lost or peer.has_left or not peer.linked_before
        _log.log(
            logging.INFO if is_news else logging.DEBUG,
            "%s is linked to %s%s%s",
            self._describe(),
            peer.address,
            f" ({name!r})" if name else "",
            " again" if peer.linked_before else "",
        )

    def lost(self, peer: PeerState, link: Link, now: float) -> None:
        """A link that was open is not any more."""
        if peer.has_left:
            _log.info("%s: %s has left", self._describe(), peer.address)
        elif now - link.used_at > self._bounds.idle_s_max / 2:  # either side may have closed it for that
            _log.debug("%s closed its link to %s: %s", self._describe(), peer.address, link.failure)
        else:
            self._missing(peer, logging.WARNING, "has lost its link to", link.failure, now)

    def unreachable(self, peer: PeerState, why: str, now: float) -> None:
        """A peer was dialled for nothing."""
        self._missing(peer, logging.INFO, "cannot reach", why, now)

    def _missing(self, peer: PeerState, level: int, what: str, why: str, now: float) -> None:
        is_news = not peer.is_lost and not peer.has_left and now - peer.told_at > self._bounds.notice_s
        _log.log(level if is_news else logging.DEBUG, "%s %s %s: %s", self._describe(), what, peer.address, why)
        if is_news:
            peer.is_lost = True
            peer.told_at = now
