"""What a block says: rows are put and deleted, by table, group and key.

A group is what is deleted together, such as all that belongs to one owner; keys are unique in it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

PUT: Final = 0
"""(PUT, table, group, key, value)"""
DELETE: Final = 1
"""(DELETE, table, group, key)"""
DELETE_GROUP: Final = 2
"""(DELETE_GROUP, table, group)"""
DELETE_UP_TO: Final = 3
"""(DELETE_UP_TO, table, group, key): the rows with this number or a lower one, in a group whose keys are numbers."""
EPOCH: Final = 4
"""(EPOCH, number): whose blocks follow."""

Change = tuple[Any, ...]
"""One of the above, as it is written."""
Part = int | str
"""A group, or a key."""


class Operation(msgspec.Struct, array_like=True, gc=False):
    """One of the above, as it is read; its value is not decoded."""

    code: int
    table: int
    group: Part = 0
    key: Part = 0
    value: msgspec.Raw = msgspec.Raw(b"")
