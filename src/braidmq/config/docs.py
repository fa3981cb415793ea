"""The tables of all keys in docs/configuration.md, from the structs: `python -m braidmq.config.docs FILE`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from braidmq.config.problems import shown
from braidmq.config.settings import BY_KIND, Config, Listener
from braidmq.config.words import item_of, struct_of, words

BEGIN: Final = "<!-- keys: begin -->"
END: Final = "<!-- keys: end -->"

# What the keys of [limits] mean that have no text in the code, since their names say enough there.
_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "connections_max": "Connections at a time, over all listeners.",
        "packet_bytes_max": "The largest packet that a client may send.",
        "topic_levels_max": "Levels of a topic or topic filter.",
        "subscription_ids": "Whether subscription identifiers can be used (MQTT 5).",
        "queue_bytes_max": "Bytes of the messages that wait for a session.",
        "session_expiry_max_s": "The longest Session Expiry Interval granted; 4294967295 is for ever.",
        "sessions_max": "Sessions that are kept, connected or not.",
        "retained_messages_max": "Retained messages that are kept.",
        "retained_bytes_max": "Bytes of the retained messages that are kept.",
        "qos_max": "The highest QoS that clients may publish with.",
        "retain": "Whether messages can be retained.",
        "wildcards": "Whether subscriptions may have wildcards.",
        "shared_subscriptions": "Whether there are shared subscriptions.",
    }
)


def key_table() -> str:
    """A Markdown table a struct: key, values, default, meaning."""
    return "\n".join(_sections(Config, ""))


def updated(text: str) -> str:
    """The document with the tables between its two marks made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected {BEGIN} and {END} in the document")
    return f"{before}{BEGIN}\n{key_table()}\n{END}{after}"


def _sections(cls: type[msgspec.Struct], name: str) -> Iterator[str]:
    meanings = _meanings(cls)
    inner: list[tuple[type[msgspec.Struct], str]] = []
    yield f"### {name}\n" if name else "### At the top\n"
    yield "| key | values | default | meaning |"
    yield "|---|---|---|---|"
    bare = name.strip("[]`")
    for field in msgspec.structs.fields(cls):
        meaning = meanings.get(field.name) or _LIMITS[field.name]
        path = f"{bare}.{field.name}" if bare else field.name
        item = item_of(field.type)
        table = struct_of(field.type) or (struct_of(item[0]) if item else None)
        if table is not None and table not in [cls for cls, _ in inner]:
            inner.append((table, f"`[[{path}]]`" if item else f"`[{path}]`"))
        default = "see below" if table is not None and field.default else _default(cls, field)
        yield f"| `{field.name}` | {words(field.type)} | {default} | {meaning} |"
    yield ""
    for table, title in inner:
        yield from _sections(table, title)


def _default(cls: type[msgspec.Struct], field: Any) -> str:
    if field.required:
        return "must be given"
    if field.default is msgspec.NODEFAULT:
        return "empty"
    if field.default in (BY_KIND, "") and cls is Listener:
        return "by kind"
    if field.default is None:
        return ""
    return f"`{shown(field.name, field.default)}`" if field.default != () else "empty"


def _meanings(cls: type[msgspec.Struct]) -> dict[str, str]:
    """The texts that stand under a struct's fields in its source."""
    body = ast.parse(inspect.getsource(cls)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
