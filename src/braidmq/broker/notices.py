"""Log lines about what clients did: which client, in words that cannot pass for anything else, and not too many.

Any client that reaches a port can make the broker write such a line, as often and with any names. So these lines
are counted over a span of time, those about one client or address and all together; what is left out is said as a
number when the span ends. Names stand in quotation marks with every control character escaped, and are cut short.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from braidmq.bounded import BoundedDict
from braidmq.security.identity import Origin

SPAN_S: Final = 60.0
"""The time over which lines are counted."""
LINES_MAX: Final = 100
"""Lines in that time, about any clients."""
LINES_EACH_MAX: Final = 10
"""Lines in that time about one: a client that is let in goes by its id, anyone else by the address without the port."""
NAME_CHARS_MAX: Final = 100
"""Characters of a name, a topic or another text that came from outside."""
COMPLAINTS_MAX: Final = 1_000
"""Lines that are remembered, so that each is written once; the oldest is forgotten."""
LINE_CHARS_MAX: Final = 1_000
"""Characters of what was wrong, which may quote several of those."""

_TOKEN: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)


def quoted(text: str) -> str:
    """A text from outside as it may stand in a log line: in quotation marks, on one line, and cut short."""
    return repr(text) if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]!r}…"


def one_line(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """A sentence that may quote what came from outside: nothing in it ends the line or moves the cursor."""
    if len(text) > chars_max:
        text = text[:chars_max] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def described(client_id: str | None, user: str | None, origin: Origin) -> str:
    """How a log line calls a client: its id, its user name or what its certificate says, and where it is.

    A token is a secret even where a client puts it by mistake.
    """
    where = origin.peer or origin.listener
    if client_id is None:
        return f"a connection from {where}"
    names = []
    if user is not None:
        names.append("user (a token)" if _TOKEN.match(user) else f"user {quoted(user)}")
    certified = origin.common_name or next(iter(origin.alternative_names), None)
    if certified:
        names.append(f"certificate {quoted(certified)}")
    return f"client {quoted(client_id)}, {', '.join(names) or 'anonymous'}, from {where}"


def address(origin: Origin) -> str:
    """What lines about a client that is not let in yet are counted by."""
    return f"address {origin.peer.rpartition(':')[0] or origin.peer}"


class ClientNotices:
    """Writes lines as long as there are not too many."""

    def __init__(
        self, log: logging.Logger, now: Callable[[], float], at: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """`at` calls a function at a time of `now`."""
        self._log = log
        self._now = now
        self._at = at
        self._ends_at = 0.0
        self._lines: dict[str, int] = {}
        self._count = 0
        self._left_out = 0
        self._complaints: BoundedDict[tuple[str, str], None] = BoundedDict(COMPLAINTS_MAX)

    def is_news(self, client_id: str, text: str) -> bool:
        """Whether this was not said of this client before, as far as is remembered."""
        return self._complaints.add((client_id, text))

    def say(self, about: str, who: object, text: str, *arguments: object) -> None:
        """One line about a client, unless there were enough already; `who` is asked for its name only if not."""
        now = self._now()
        if now >= self._ends_at:
            self._end_span()
            self._ends_at = now + SPAN_S
        lines = self._lines.get(about, 0)
        if lines < LINES_EACH_MAX and self._count < LINES_MAX:
            self._lines[about] = lines + 1
            self._count += 1
            self._log.info("%s: " + text, str(who), *arguments)
            return
        if not self._left_out:
            self._at(self._ends_at, self._end_span)
        self._left_out += 1

    def _end_span(self) -> None:
        if self._left_out:
            self._log.info("%d more lines like these were left out in %g s", self._left_out, SPAN_S)
        self._ends_at = 0.0
        self._count = self._left_out = 0
        self._lines.clear()
