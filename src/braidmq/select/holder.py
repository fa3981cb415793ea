"""A holder: keeps a reservation for as long as it is used, and knows when it is no longer its own."""

from __future__ import annotations

from typing import Final

from braidmq.host import Host, ask
from braidmq.select.member import Reservation
from braidmq.select.messages import Release, Released, Renew, Renewed

SAFETY: Final = 0.9
"""Which part of a lease its holder relies on: clocks do not run alike."""

RENEW_PART: Final = 0.5
"""After which part of a lease it is renewed."""

RENEW_TIMEOUT_S: Final = 2.0
RENEW_PAUSE_S: Final = 1.0
RELEASE_TRIES: Final = 3


class Holder:
    """One reservation, asked for at a time that its lease is counted from."""

    def __init__(self, host: Host, reservation: Reservation, asked_at: float) -> None:
        self.host = host
        self.reservation = reservation
        self._from = asked_at
        self._lease_s = reservation.lease_s
        self._is_over = False

    @property
    def is_valid(self) -> bool:
        """Whether the component is surely reserved."""
        return not self._is_over and self.host.now() < self._from + SAFETY * self._lease_s

    async def keep(self) -> None:
        """Renews until it is released, or cannot be renewed."""
        member = self.reservation.member
        renew = Renew(member.key, self.reservation.request, self.reservation.fence)
        while self.is_valid:
            due = self._from + RENEW_PART * self._lease_s
            await self.host.sleep(max(0.0, due - self.host.now()))
            asked_at = self.host.now()
            if not self.is_valid:
                return
            answer = await ask(self.host, member.address, renew, Renewed, timeout_s=RENEW_TIMEOUT_S)
            if answer is None:
                await self.host.sleep(RENEW_PAUSE_S)
            elif answer.lease_s:
                self._from, self._lease_s = asked_at, answer.lease_s
            else:
                self._is_over = True

    async def release(self) -> None:
        """It is no longer used; if the member does not hear of it, the lease runs out."""
        if self._is_over:
            return
        self._is_over = True
        member = self.reservation.member
        asked = Release(member.key, self.reservation.request, self.reservation.fence)
        await ask(self.host, member.address, asked, Released, timeout_s=RENEW_TIMEOUT_S, tries=RELEASE_TRIES)
