"""Many keys of a broker that leave an overlay beside each other."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.host import run_all
from braidmq.keys import Key
from braidmq.overlay.overlay import Overlay


async def leave_all(overlay: Overlay, keys: Iterable[Key]) -> None:
    """Returns when none of these keys is in the overlay any more.

    Of the keys in their order every second one goes at a time: of two side by side that leave at the same time, one
    refuses the other, and both try again.
    """
    left = sorted(keys)
    while left:
        await run_all(overlay.host, [overlay.leave(key) for key in left[::2]])
        left = left[1::2]
