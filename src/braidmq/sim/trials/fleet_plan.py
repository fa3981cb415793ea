"""A fleet: sites with a broker each, devices with a topic and a command filter each, and who wants what of it.

| who | publishes | wants |
|---|---|---|
| a device | `site/<site>/dev/<device>/telemetry` | `cmd/<site>/<device>/#` |
| a site's application | commands to devices of one site | all telemetry of some sites, and of some single devices |
| the cloud: a few brokers | | all telemetry of all sites, and `alarm/#` |

Which sites applications look at and command follows Zipf's law: the site of rank r is drawn 1/r as often as the first.
Names are made when they are asked for: a million devices take up no memory here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from random import Random

SITES_WATCHED = 3
"""Sites that an application wants all telemetry of."""

DEVICES_WATCHED = 10
DEVICES_WATCHED_SITES = 3
"""Single devices that an application wants the telemetry of, and the other sites that they are at."""

DEVICES_COMMANDED = 3
"""Devices of one site that an application sends commands to."""

CLOUD_EVERY = 500
"""Of so many brokers one is of the cloud."""

ALL_TELEMETRY = "site/+/dev/+/telemetry"
ALL_ALARMS = "alarm/#"


class FleetPlan:
    """Who publishes and wants what; a function of sizes and seed."""

    def __init__(self, brokers: int, topics: int, filters: int, seed: int) -> None:
        """`topics` and `filters` are those of devices, at each broker."""
        self.brokers = brokers
        self.topics = topics
        self.filters = filters
        chance = Random(seed)  # noqa: S311 - reproducible on purpose
        self._ranked = list(range(brokers))
        chance.shuffle(self._ranked)
        self._weights = list(accumulate(1 / rank for rank in range(1, brokers + 1)))
        self.cloud = chance.sample(range(brokers), max(1, brokers // CLOUD_EVERY))
        self.sites_watched: list[list[int]] = []
        self.devices_watched: list[list[tuple[int, int]]] = []
        self.commanded: list[list[tuple[int, int]]] = []
        self._watching: list[list[int]] = [[] for _ in range(brokers)]
        """The brokers that watch each site."""
        self._watching_device: dict[tuple[int, int], list[int]] = {}
        for broker in range(brokers):
            self._deal(broker, chance)

    def _deal(self, broker: int, chance: Random) -> None:
        is_cloud = broker in self.cloud
        sites: dict[int, None] = {}
        others_max = self.brokers - 1
        while not is_cloud and len(sites) < min(SITES_WATCHED, others_max):
            sites.setdefault(self._draw(chance, broker))
        others: dict[int, None] = {}
        while not is_cloud and len(others) < min(DEVICES_WATCHED_SITES, others_max - len(sites)):
            site = self._draw(chance, broker)
            if site not in sites:  # of a site that is watched as a whole, each device is
                others.setdefault(site)
        devices: dict[tuple[int, int], None] = {}
        for number in range(DEVICES_WATCHED if others else 0):
            devices.setdefault((list(others)[number % len(others)], chance.randrange(self.topics)))
        self.sites_watched.append(list(sites))
        self.devices_watched.append(list(devices))
        for site in sites:
            self._watching[site].append(broker)
        for device in devices:
            self._watching_device.setdefault(device, []).append(broker)
        site = self._draw(chance, broker)
        count = min(DEVICES_COMMANDED, self.filters)
        self.commanded.append([(site, device) for device in sorted(chance.sample(range(self.filters), count))])

    def _draw(self, chance: Random, mine: int) -> int:
        """A site other than a broker's own, by Zipf's law."""
        while True:
            rank = bisect_right(self._weights, chance.random() * self._weights[-1])
            site = self._ranked[min(rank, self.brokers - 1)]
            if site != mine:
                return site

    # Names

    def telemetry(self, site: int, device: int) -> str:
        return f"site/s{site:04d}/dev/d{device:06d}/telemetry"

    def all_telemetry(self, site: int) -> str:
        return f"site/s{site:04d}/dev/+/telemetry"

    def command(self, site: int, device: int) -> str:
        return f"cmd/s{site:04d}/d{device:06d}/set"

    def commands(self, site: int, device: int) -> str:
        return f"cmd/s{site:04d}/d{device:06d}/#"

    def alarm(self, site: int, number: int) -> str:
        return f"alarm/s{site:04d}/{number}"

    # Who wants what

    def wanted_by_applications(self, broker: int) -> Iterator[str]:
        """The filters of the applications at a broker."""
        if broker in self.cloud:
            yield ALL_TELEMETRY
            yield ALL_ALARMS
        for site in self.sites_watched[broker]:
            yield self.all_telemetry(site)
        for site, device in self.devices_watched[broker]:
            yield self.telemetry(site, device)

    def wanted_by_devices(self, broker: int) -> Iterator[str]:
        return (self.commands(broker, device) for device in range(self.filters))

    def published(self, broker: int) -> Iterator[str]:
        """The topics of the devices and applications at a broker."""
        for device in range(self.topics):
            yield self.telemetry(broker, device)
        for site, device in self.commanded[broker]:
            yield self.command(site, device)

    def watch(self, broker: int, site: int, device: int) -> None:
        """The applications of a broker want a device's telemetry from now on."""
        self._watching_device.setdefault((site, device), []).append(broker)

    def wanting_telemetry(self, site: int, device: int) -> tuple[int, ...]:
        """The brokers that want a device's telemetry, but for its own."""
        found = (*self._watching[site], *self._watching_device.get((site, device), ()), *self.cloud)
        return tuple(broker for broker in found if broker != site)

    def wanting_alarm(self, site: int) -> tuple[int, ...]:
        return tuple(broker for broker in self.cloud if broker != site)

    # A key a topic

    def keys_published(self, topic: str) -> tuple[str, ...]:
        """Under which filters a method finds the subscribers of a topic that knows a key a filter, and no wildcards.

        A publisher stands for each filter that can match its topic, by the forms that filters have.
        """
        levels = topic.split("/")
        if levels[0] == "site":
            levels[3] = "+"
            return topic, "/".join(levels), ALL_TELEMETRY
        return (topic, "/".join([*levels[:-1], "#"])) if levels[0] == "cmd" else (topic, ALL_ALARMS)
