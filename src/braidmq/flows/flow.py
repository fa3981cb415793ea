"""What a dataflow is: components, what each of them takes from which others, and what each of them needs.

A component is a type; it has instances. What a component publishes for one stream (one device, say) goes to one
instance of each component that takes it: to any that is free if that is shared, always to the same one if it is
reserved, since it compares a message with those before it (Ishihara et al. 2021, §2.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from braidmq.mqtt.errors import PacketError
from braidmq.mqtt.topics import check_filter, has_wildcard

COMPONENTS_MAX: Final = 64
"""Components of one flow."""
INSTANCES_MAX: Final = 1_000
"""Instances of one component."""
SLOTS_MAX: Final = 65_535
"""Messages or streams that one instance may have at a time: the largest Receive Maximum of MQTT 5."""

RESERVED_NAMES: Final = ("sites", "reports", "reserved")
"""Levels of topics below a flow's that are not of components."""

Layer = Literal["device", "edge", "cloud"]
LAYERS: Final[tuple[Layer, ...]] = ("device", "edge", "cloud")
"""From where messages come from to where there is most room."""

Use = Literal["shared", "reserved"]

Runs = Literal["process", "spark"]
"""Where a component's function runs: in a process for each instance, or as a query on Spark."""


class FlowError(ValueError):
    """A flow that cannot be used: what is wrong with it, and what to do."""


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an instance takes, and how soon the component must have answered."""

    cpu: float = 0.1
    """Processors of one instance."""
    memory: float = 64.0
    """Its memory, MiB."""
    service_s: float = 0.0
    """How long it works on one message."""
    response_s: float | None = None
    """How long it may take from a message of a device until this component has published what it makes of it."""


class FlowComponent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"sources": "from"}):
    name: str
    sources: tuple[str, ...] = ()
    """The components whose messages it takes."""
    file: str | None = None
    """Its message processor, as `file.py:name`; None if it is a client of its own, which is not started here."""
    topic: str | None = None
    """Where a client of its own publishes, a filter: what stands for its first `+` is the stream. By default
    `flow/<flow>/<component>/+`."""
    runs: Runs = "process"
    use: Use = "shared"
    layer: Layer | None = None
    """Where it has to be; None: wherever its needs are met with the least use of what is scarce."""
    instances: int = 1
    slots: int = 1
    """How many messages (shared) or streams (reserved) an instance can have at a time."""
    needs: Needs = Needs()

    @property
    def is_external(self) -> bool:
        return self.file is None

    @property
    def is_on_spark(self) -> bool:
        return self.runs == "spark"

    @property
    def bound_to(self) -> Layer | None:
        """The layer that it has to be in; Spark is in the cloud."""
        return "cloud" if self.is_on_spark else self.layer


class Delays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the layers are from the devices, in seconds one way; for what nobody has measured."""

    device: float = 0.0
    edge: float = 0.005
    cloud: float = 0.05

    def between(self, one: Layer, other: Layer) -> float:
        return abs(float(getattr(self, one)) - float(getattr(self, other)))


class Dataflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"components": "component"}):
    """A graph of components, each behind those that it takes messages from."""

    name: str
    components: tuple[FlowComponent, ...]
    delays: Delays = Delays()

    def __post_init__(self) -> None:
        _check_level(self.name, "the flow's name")
        if not self.components:
            raise FlowError("the flow has no components: add [[component]]")
        if len(self.components) > COMPONENTS_MAX:
            raise FlowError(f"the flow has {len(self.components)} components, {COMPONENTS_MAX} are allowed")
        names = [component.name for component in self.components]
        for name in names:
            if names.count(name) > 1:
                raise FlowError(f"two components are called {name!r}")
        for component in self.components:
            self._check(component, names)
        self.in_order()

    def _check(self, component: FlowComponent, names: Sequence[str]) -> None:
        name = component.name
        _check_level(name, "a component's name")
        if name in RESERVED_NAMES:
            raise FlowError(f"a component is called {name!r}: that level of topics is taken, choose another name")
        for source in component.sources:
            if source not in names:
                raise FlowError(f"{name} takes messages from {source!r}: there is no such component")
        if not 1 <= component.instances <= INSTANCES_MAX:
            raise FlowError(f"{name}: instances = {component.instances}, expected 1 to {INSTANCES_MAX:,}")
        if not 1 <= component.slots <= SLOTS_MAX:
            raise FlowError(f"{name}: slots = {component.slots}, expected 1 to {SLOTS_MAX:,}")
        needs = component.needs
        for key, value in (("cpu", needs.cpu), ("memory", needs.memory), ("service_s", needs.service_s)):
            if not 0 <= value < float("inf"):
                raise FlowError(f"{name}: needs.{key} = {value}, expected a number from 0 on")
        if needs.response_s is not None and not 0 < needs.response_s < float("inf"):
            raise FlowError(f"{name}: needs.response_s = {needs.response_s}, expected a number above 0")
        if not component.is_external and not component.sources:
            raise FlowError(f'{name} has a processor and takes messages from nobody: say from whom, from = ["…"]')
        if component.topic is not None:
            self._check_topic(component, component.topic)
        if component.is_on_spark:
            self._check_spark(component)

    def _check_spark(self, component: FlowComponent) -> None:
        """Spark reads logs of brokers: it takes all streams of one source, and cannot reserve anybody."""
        name = component.name
        if component.is_external:
            raise FlowError(f'{name}: runs = "spark" is for message processors: say which, file = "…"')
        if component.layer not in (None, "cloud"):
            raise FlowError(f'{name}: runs = "spark", and layer = "{component.layer}": Spark is in the cloud')
        if component.use != "shared" or component.instances != 1:
            raise FlowError(f'{name}: runs = "spark" is one query for all streams: leave out use and instances')
        if len(component.sources) != 1:
            raise FlowError(f'{name}: runs = "spark" takes messages of one component, not of {len(component.sources)}')
        reserved = [one.name for one in self.takers_of(name) if one.use == "reserved"]
        if reserved:
            raise FlowError(f"{name} runs on Spark, which reserves nobody: {reserved[0]} has to be shared")

    def _check_topic(self, component: FlowComponent, topic: str) -> None:
        try:
            check_filter(topic)
        except PacketError as error:
            raise FlowError(f"{component.name}: topic = {topic!r}: {error.text}") from None
        if not component.is_external:
            raise FlowError(
                f"{component.name}: topic is for clients of their own; a processor's output has a topic already"
            )
        if topic.split("/").count("+") != 1 or topic.endswith("#"):
            raise FlowError(f"{component.name}: topic = {topic!r}, expected one + for the stream, and no #")

    def __iter__(self) -> Iterator[FlowComponent]:
        return iter(self.components)

    def component(self, name: str) -> FlowComponent:
        """The one with this name; a FlowError if there is none."""
        for component in self.components:
            if component.name == name:
                return component
        raise FlowError(f"{self.name} has no component {name!r}, only {', '.join(one.name for one in self)}")

    def takers_of(self, name: str) -> list[FlowComponent]:
        """The components that take what one publishes."""
        return [component for component in self if name in component.sources]

    def in_order(self) -> list[FlowComponent]:
        """Each component behind those that it takes messages from; a FlowError if some take each other's."""
        found: dict[str, FlowComponent] = {}
        left = list(self.components)
        while left:
            ready = [one for one in left if all(source in found for source in one.sources)]
            if not ready:
                raise FlowError(
                    f"these take each other's messages, round and round: {', '.join(one.name for one in left)}"
                )
            found |= {one.name: one for one in ready}
            left = [one for one in left if one.name not in found]
        return list(found.values())

    # Topics

    def output_filter(self, component: FlowComponent) -> str:
        """What matches all that a component publishes."""
        return component.topic or f"flow/{self.name}/{component.name}/+"

    def output_topic(self, component: FlowComponent, stream: str) -> str:
        """Where a component publishes what it has for a stream."""
        return "/".join(stream if level == "+" else level for level in self.output_filter(component).split("/"))

    def stream_of(self, component: FlowComponent, topic: str) -> str:
        """The stream of something that a component has published."""
        levels = self.output_filter(component).split("/")
        return topic.split("/")[levels.index("+")]

    def group_of(self, component: FlowComponent) -> str:
        """The name under which the instances of a component share and are reserved."""
        return f"{self.name}.{component.name}"


def _check_level(text: str, what: str) -> None:
    if not text or "/" in text or has_wildcard(text) or "$" in text or not text.isprintable():
        raise FlowError(f"{what} is {text!r}: it is a level of topics, so leave out / + # $ and what is invisible")
