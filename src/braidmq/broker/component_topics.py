"""Topics of components: an instance of one has a topic of its own, `$component/<component>/<client id>`.

Unlike the topics that are each broker's own it is passed on to other brokers, as any topic is.
"""

from __future__ import annotations

from typing import Final

COMPONENT_PREFIX: Final = "$component/"

_ESCAPED: Final = {ord(character): f"%{ord(character):02X}" for character in "%/+#"}


def level_of(text: str) -> str:
    """A client id, or another name, as one level of a topic: what has a meaning in topics is written as `%2F`."""
    return text.translate(_ESCAPED)


def instance_topic(component: str, client_id: str) -> str:
    """What is published there, the instance of a component gets, and no other."""
    return f"{COMPONENT_PREFIX}{component}/{level_of(client_id)}"
