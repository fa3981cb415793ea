"""What clients ask for, as JSON: a reservation, or how a component is; checked as a whole, with a reason for people."""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from braidmq.keys import cluster_problem
from braidmq.select.request import LEASE_MAX_S, NEEDS_MAX, SLOTS, STEPS, Need

REQUEST_BYTES_MAX: Final = 4_096
"""Of the payload of a request."""

LOAD_BYTES_MAX: Final = 1_024
"""Of a report of load."""

ATTRIBUTES_MAX: Final = 16
"""Of a component, `slots` among them."""

NAME_MAX: Final = 64
"""Characters of an attribute's name, or of a key."""

SLOTS_MAX: Final = 10_000
"""Of one instance."""

LEASE_S: Final = 60.0
"""Of a reservation for which nothing else is asked."""

LEASE_S_MAX: Final = LEASE_MAX_S / 2
LEASE_S_MIN: Final = 1.0

OWN_CLUSTER: Final = "."

_CONDITION: Final = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(<=|>=)\s*(\S+)\s*")
_LEAST: Final = re.compile(r"least\s+(\S+)")


class Malformed(ValueError):
    """A request that cannot be understood; says why."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that a client asks for. `cluster` is None where the nearest is wanted, and "" for the braid."""

    lease_s: float = LEASE_S
    cluster: str | None = None
    needs: tuple[Need, ...] = ()
    score: tuple[tuple[str, float], ...] = ()
    key: str = ""
    source: str = ""
    """The reservation whose stream goes on with this one."""


class _Request(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from"}):
    conditions: list[str] = []
    cluster: str | None = None
    lease: float = LEASE_S
    key: str = ""
    score: str | dict[str, float] = ""
    source: str = ""


_decode_request: Final = msgspec.json.Decoder(_Request).decode
_decode_load: Final = msgspec.json.Decoder(dict[str, float]).decode


def read_request(payload: bytes, own_cluster: str) -> Asked:
    """The reservation that a payload asks for; an empty one asks for the nearest, for a minute."""
    if len(payload) > REQUEST_BYTES_MAX:
        raise Malformed(f"a request of {len(payload):,} bytes: at most {REQUEST_BYTES_MAX:,}")
    try:
        request = _decode_request(payload) if payload.strip() else _Request()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"not a request: {error}") from None
    if not LEASE_S_MIN <= request.lease <= LEASE_S_MAX:
        raise Malformed(f"a lease of {request.lease:g} s: from {LEASE_S_MIN:g} to {LEASE_S_MAX:,.0f} s")
    if len(request.conditions) > NEEDS_MAX or len(request.score) > NEEDS_MAX * NAME_MAX:
        raise Malformed(f"{len(request.conditions)} conditions: at most {NEEDS_MAX}, and as many attributes in a score")
    if len(request.key) > NAME_MAX:
        raise Malformed(f"a key of {len(request.key)} characters: at most {NAME_MAX}")
    if request.source and "@" not in request.source:
        raise Malformed(f"{request.source[:NAME_MAX]!r} is no id of a reservation to go on from")
    return Asked(
        lease_s=request.lease,
        cluster=_cluster(request.cluster, own_cluster),
        needs=tuple(read_condition(one) for one in request.conditions),
        score=read_score(request.score),
        key=request.key,
        source=request.source,
    )


def _cluster(path: str | None, own: str) -> str | None:
    if path == OWN_CLUSTER:
        return own
    problem = cluster_problem(path) if path else None
    if problem is not None:
        raise Malformed(f"{path!r} is no cluster: {problem}; expected a path such as cloud1/edge1")
    return path


def read_condition(text: str) -> Need:
    """`cpu <= 50`, as data."""
    found = _CONDITION.fullmatch(text)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or not math.isfinite(bound) or len(found[1]) > NAME_MAX:
        raise Malformed(f"{text[:NAME_MAX]!r} is no condition: expected one such as 'cpu <= 50' or 'memory >= 512'")
    return Need(found[1], found[2], bound)


def read_score(score: str | dict[str, float]) -> tuple[tuple[str, float], ...]:
    """By which the best of several is told: `nearest`, `least cpu`, or weights of attributes; less is better."""
    if isinstance(score, str):
        if not score:
            return ()
        if score == "nearest":
            return ((STEPS, 1.0),)
        found = _LEAST.fullmatch(score)
        if found is None or len(found[1]) > NAME_MAX:
            raise Malformed(f"{score[:NAME_MAX]!r} is no score: expected 'nearest', 'least cpu' or {{\"cpu\": 1.0}}")
        return ((found[1], 1.0),)
    if len(score) > NEEDS_MAX or any(len(name) > NAME_MAX for name in score):
        raise Malformed(f"a score of {len(score)} attributes: at most {NEEDS_MAX}, with names of {NAME_MAX} characters")
    if not all(math.isfinite(weight) for weight in score.values()):
        raise Malformed("a weight in the score is no number")
    return tuple(score.items())


def read_load(payload: bytes) -> tuple[int | None, dict[str, float]]:
    """Slots, if they are told, and the other attributes that a component reports."""
    if len(payload) > LOAD_BYTES_MAX:
        raise Malformed(f"a report of {len(payload):,} bytes: at most {LOAD_BYTES_MAX:,}")
    try:
        told = _decode_load(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"not a report of numbers: {error}") from None
    if len(told) > ATTRIBUTES_MAX:
        raise Malformed(f"{len(told)} attributes: at most {ATTRIBUTES_MAX}")
    for name, value in told.items():
        if _CONDITION.fullmatch(f"{name}<=0") is None or len(name) > NAME_MAX or name == STEPS:
            raise Malformed(f"{name[:NAME_MAX]!r} cannot be the name of an attribute")
        if not math.isfinite(value):
            raise Malformed(f"{name} is {value}: that is no number to compare with")
    slots = told.pop(SLOTS, None)
    if slots is not None and not (0 <= slots <= SLOTS_MAX and slots == int(slots)):
        raise Malformed(f"{slots:g} slots: a whole number from 0 to {SLOTS_MAX:,}")
    return None if slots is None else int(slots), told
