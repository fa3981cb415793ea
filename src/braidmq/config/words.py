"""What a configuration value may be, in words: for error messages and for the documentation."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import inspect


def words(kind: Any) -> str:
    """The values of a type as a person would say it, such as "a whole number from 0 to 65535"."""
    return _words(inspect.type_info(kind))


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.UnionType(types=types):
            return " or ".join(_words(item) for item in types if not isinstance(item, inspect.NoneType))
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.StrType(pattern=str()):
            return 'a class as "package.module:Class"'
        case inspect.StrType(min_length=length):
            return "text that is not empty" if length else "text"
        case inspect.VarTupleType(item_type=inspect.StructType()):
            return "a list of tables" + _at_least(info.min_length)
        case inspect.VarTupleType(item_type=inspect.StrType()):
            return "a list of texts" + _at_least(info.min_length)
        case inspect.VarTupleType(item_type=item):
            return f"a list, each {_words(item)}" + _at_least(info.min_length)
        case inspect.StructType(cls=cls) if "use" in cls.__struct_fields__:
            return 'a class as "package.module:Class", or a table with use and options'
        case _:
            return "a table"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    if info.ge is not None:
        return f" of at least {info.ge}"
    if info.gt is not None:
        return f" above {info.gt}"
    return ""


def _at_least(length: int | None) -> str:
    return f", at least {length}" if length else ""


def item_of(kind: Any) -> tuple[Any, int] | None:
    """The type of a list's items and the least number of them, if the type is a list."""
    length = 0
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
        length = meta.min_length or 0
    return (get_args(kind)[0], length) if get_origin(kind) is tuple else None


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a type stands for, if it is one or may be left out as none."""
    match inspect.type_info(kind):
        case inspect.StructType(cls=cls):
            return cls
        case inspect.UnionType(types=(inspect.StructType(cls=cls), inspect.NoneType())):
            return cls
        case inspect.UnionType(types=(inspect.NoneType(), inspect.StructType(cls=cls))):
            return cls
    return None
