"""Patterns of client identifiers, such as `{user}-+`, bound to the client that connects.

`{user}` is the user name and `{certificate}` the common name of the client's certificate, both literally; `+` is any
text and `*` any text or none. A name that the client does not have makes the pattern match nothing.
"""

from __future__ import annotations

import re
from typing import Final

_PARTS: Final = re.compile(r"(\{user\}|\{certificate\}|[+*])")
_WILDCARDS: Final = {"+": ".+", "*": ".*"}


def client_id_problem(pattern: str) -> str:
    """What is wrong with a pattern, or "" if nothing is."""
    rest = _PARTS.sub("", pattern)
    return "only {user} and {certificate} may stand in braces" if "{" in rest or "}" in rest else ""


def client_id_matches(pattern: str, client_id: str, user: str | None, certificate: str | None) -> bool:
    names = {"{user}": user, "{certificate}": certificate}
    expression = ""
    for part in _PARTS.split(pattern):
        text = names.get(part, part)
        if not text and part in names:
            return False
        expression += _WILDCARDS.get(part) or re.escape(text or "")
    return re.fullmatch(expression, client_id, re.DOTALL) is not None
