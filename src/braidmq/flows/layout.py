"""Where the components of a flow run: the layer that answers in time, with the least use of what is scarce; then sites.

A message takes time to a layer and is worked on there. So the response time of a component follows from the layers of
all before it, and of all layouts that keep to every response time that one is taken that uses the smallest shares of
its layers' processors. An edge of four processors is scarcer than a cloud of a hundred; so what may take its time goes
to the cloud, and what must be quick stays near. Instances go one by one to the site of the layer with most room.

The layout depends on the flow and the sites alone: all that know them agree on it without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from braidmq.flows.flow import LAYERS, Dataflow, FlowComponent, FlowError, Layer
from braidmq.flows.sites import FlowSite

SEARCH_MAX: Final = 200_000
"""Partial layouts that are looked at; then the best so far is taken."""

_SLACK: Final = 1e-9
"""By which two sums of the same numbers may differ."""


class Placed(msgspec.Struct, frozen=True, order=True):
    """An instance and its site."""

    component: str
    number: int
    site: str


class Layout(msgspec.Struct, frozen=True):
    layers: dict[str, Layer]
    """By component; of clients of their own, the layer that they were said or taken to be in."""
    response_s: dict[str, float]
    """By component: from a device's message until it has published what it makes of it."""
    instances: tuple[Placed, ...]

    def at(self, site: str) -> list[Placed]:
        return [one for one in self.instances if one.site == site]


def lay_out(flow: Dataflow, sites: Iterable[FlowSite]) -> Layout:
    """The layout of a flow over sites; a FlowError says what is lacking."""
    known = sorted(sites, key=lambda site: site.name)
    if not known:
        raise FlowError("there is no site where components could run")
    search = _Search(flow, known)
    while True:
        layers = search.best()
        instances, full = _assign(flow, layers, known)
        if full is None:
            return Layout(layers, response_times(flow, layers), tuple(sorted(instances)))
        search.exclude(full, layers[full])


def response_times(flow: Dataflow, layers: dict[str, Layer]) -> dict[str, float]:
    """By component, as far as layers are given: when it has published, after a message of a device."""
    done: dict[str, float] = {}
    for component in flow.in_order():
        if component.name in layers:
            done[component.name] = _done(flow, component, layers, done)
    return done


def _done(flow: Dataflow, component: FlowComponent, layers: dict[str, Layer], done: dict[str, float]) -> float:
    layer = layers[component.name]
    come = [done[one] + flow.delays.between(layers[one], layer) for one in component.sources]
    return max(come, default=0.0) + component.needs.service_s


class _Search:
    """Layers for all components, by trying, the best kept."""

    def __init__(self, flow: Dataflow, sites: Sequence[FlowSite]) -> None:
        self._flow = flow
        self._order = flow.in_order()
        self._cpu = {layer: sum(site.cpu for site in sites if site.layer == layer) for layer in LAYERS}
        self._left: dict[Layer, tuple[float, float]] = {
            layer: (self._cpu[layer], sum(site.memory for site in sites if site.layer == layer)) for layer in LAYERS
        }
        """Processors and memory that nothing was laid out on yet."""
        self._excluded: set[tuple[str, Layer]] = set()
        self._looked_at = 0
        self._best: tuple[float, dict[str, Layer]] | None = None

    def exclude(self, component: str, layer: Layer) -> None:
        """There is no room for all instances of a component there."""
        self._excluded.add((component, layer))

    def best(self) -> dict[str, Layer]:
        self._looked_at, self._best = 0, None
        least = [min((self._cost(one, layer) for layer in self._allowed(one)), default=0.0) for one in self._order]
        self._try({}, {}, 0.0, [sum(least[number:]) for number in range(len(least) + 1)])
        if self._best is None:
            raise FlowError(self._lacking())
        return self._best[1]

    def _allowed(self, component: FlowComponent) -> list[Layer]:
        """Where it may be, the layer with most room first."""
        if component.is_external:
            return [component.layer or "device"]
        found = [
            layer
            for layer in LAYERS
            if component.bound_to in (None, layer)
            and self._cpu[layer] >= max(component.instances * component.needs.cpu - _SLACK, _SLACK)
            and (component.name, layer) not in self._excluded
        ]
        return sorted(found, key=lambda layer: (self._cost(component, layer), -LAYERS.index(layer)))

    def _cost(self, component: FlowComponent, layer: Layer) -> float:
        if component.is_external:
            return 0.0
        return component.instances * component.needs.cpu / self._cpu[layer]

    def _try(self, layers: dict[str, Layer], done: dict[str, float], cost: float, least: list[float]) -> None:
        number = len(layers)
        if self._best is not None and cost + least[number] >= self._best[0] - _SLACK:
            return
        if number == len(self._order):
            self._best = cost, dict(layers)
            return
        component = self._order[number]
        for layer in self._allowed(component):
            self._looked_at += 1
            if self._looked_at > SEARCH_MAX and self._best is not None:
                return
            layers[component.name] = layer
            at = done[component.name] = _done(self._flow, component, layers, done)
            response_s = component.needs.response_s
            before = self._left[layer]
            if (response_s is None or at <= response_s + _SLACK) and self._take(component, layer):
                self._try(layers, done, cost + self._cost(component, layer), least)
                self._left[layer] = before
            del layers[component.name], done[component.name]

    def _take(self, component: FlowComponent, layer: Layer) -> bool:
        """Takes the room for all instances of a component, if there is as much."""
        if component.is_external:
            return True
        cpu, memory = self._left[layer]
        cpu -= component.instances * component.needs.cpu
        memory -= component.instances * component.needs.memory
        if min(cpu, memory) < -_SLACK:
            return False
        self._left[layer] = cpu, memory
        return True

    def _lacking(self) -> str:
        for component in self._order:
            if not self._allowed(component):
                where = f"in the layer {component.bound_to}" if component.bound_to else "anywhere"
                where += ", at a site with Spark (--brokers)" if component.is_on_spark else ""
                needs = component.needs
                return (
                    f"no room for {component.name} {where}: {component.instances} × {needs.cpu:g} processors and "
                    f"{needs.memory:g} MiB; add a site, or ask for less"
                )
        needed = ", ".join(f"{one.name} {one.needs.response_s:g} s" for one in self._order if one.needs.response_s)
        quick = f" and meets all response times ({needed})" if needed else ""
        cpu = ", ".join(f"{layer} {self._cpu[layer]:g}" for layer in LAYERS)
        return f"no layout fits into what the layers have (processors: {cpu}){quick}; add a site, or ask for less"


def _assign(flow: Dataflow, layers: dict[str, Layer], sites: Sequence[FlowSite]) -> tuple[list[Placed], str | None]:
    """Instances at sites of their layers; and a component for which there is no room, if any."""
    cpu = {site.name: site.cpu for site in sites}
    memory = {site.name: site.memory for site in sites}
    placed: list[Placed] = []
    for component in flow.in_order():
        if component.is_external:
            continue
        needs, here = component.needs, Counter[str]()
        for number in range(component.instances):
            free = [
                site.name
                for site in sites
                if site.layer == layers[component.name]
                and cpu[site.name] >= needs.cpu - _SLACK
                and memory[site.name] >= needs.memory - _SLACK
                and (site.has_spark or not component.is_on_spark)
            ]
            if not free:
                return placed, component.name
            name = min(free, key=lambda one: (here[one], -cpu[one], one))
            here[name] += 1
            cpu[name] -= needs.cpu
            memory[name] -= needs.memory
            placed.append(Placed(component.name, number, name))
    return placed, None
