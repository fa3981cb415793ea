"""Membership vectors: the random digits that say which lists of a Skip Graph a broker's nodes belong to.

Level 0 is one list of all nodes. Level i has 2^i lists, one for all nodes whose vectors begin with the same i digits.
All virtual nodes of a broker have the broker's vector (Banno et al. 2015, §5.1–5.2).

A list is named by one number, counted level by level as in a heap: 0 is level 0, 1 and 2 are level 1, 3 to 6 level 2.
So a message for one list can never be taken for one of another list of the same level, whatever became of its receiver.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

DIGITS_MAX = 56
"""Binary digits of a vector: the levels that a graph can have above level 0. No two of a million brokers share them."""

Vector = int
"""DIGITS_MAX binary digits, the first one highest."""

ListNumber = Annotated[int, Meta(ge=0, lt=(2 << DIGITS_MAX) - 1)]
"""Names a list of some level."""


def list_of(vector: Vector, level: int) -> int:
    """The number of the list that a vector belongs to on a level."""
    return (1 << level) - 1 + (vector >> (DIGITS_MAX - level))


def level_of(number: int) -> int:
    """The level of a list."""
    return (number + 1).bit_length() - 1


def is_member(vector: Vector, number: int) -> bool:
    return list_of(vector, level_of(number)) == number


def shared_digits(vector: Vector, number: int) -> int:
    """How many first digits a vector shares with all those of a list."""
    level = level_of(number)
    return level - ((vector >> (DIGITS_MAX - level)) ^ (number + 1 - (1 << level))).bit_length()


def common_digits(one: Vector, other: Vector) -> int:
    """How many first digits two vectors share: the highest level on which they are in one list."""
    return DIGITS_MAX - (one ^ other).bit_length()
