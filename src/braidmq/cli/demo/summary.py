"""What happened where: asked of the brokers before and after, and shown as tables or as JSON."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from braidmq.cli import output
from braidmq.cli.admin_port import BrokerAdmin
from braidmq.cli.demo.buses import Bus
from braidmq.cli.demo.plan import NAME, DemoSite

PLACES: Final = {"edge": "at the edge", "spark": "on Spark"}


@dataclass
class SiteCounts:
    """What a site's broker says of itself; `sent_bytes` are those of publications to other sites."""

    processed: int = 0
    delegated: int = 0
    notified: int = 0
    sent_bytes: int = 0

    def since(self, before: SiteCounts) -> SiteCounts:
        mine, others = asdict(self), asdict(before)
        return SiteCounts(**{name: mine[name] - others[name] for name in mine})


def counts_of(admin: BrokerAdmin) -> SiteCounts:
    status = admin.ask(lambda client: client.processing())
    processors = [one for one in status.processors if one.name == NAME]
    links = admin.ask(lambda client: client.braid()).links
    return SiteCounts(
        sum(one.processed for one in processors),
        sum(one.delegated for one in processors),
        sum(one.notified for one in processors),
        sum(link.publication_bytes_out for link in links),
    )


@dataclass
class Summary:
    """What the demonstration has shown; `spark_words` tell how Spark took part."""

    buses: list[Bus]
    sites: list[DemoSite]
    counts: dict[str, SiteCounts]
    control: str
    seconds: float
    spark_state: str
    spark_words: str
    spark_ran_at: float
    earlier: int
    returned: list[str] = field(default_factory=list)
    stayed: list[str] = field(default_factory=list)
    """Topics that came back to the edge in the end, and those that did not."""

    @property
    def is_well(self) -> bool:
        return not any(bus.missing or bus.repeated or bus.unexpected for bus in self.buses)

    def took_ms(self, bus: Bus) -> list[float]:
        """How long alerts took, except those that waited for Spark to start."""
        since = self.spark_ran_at if bus.processed_at == "spark" else 0.0
        return [1000 * took_s for frame, took_s in bus.alerts.items() if bus.sent_at[frame] >= since]

    def as_json(self) -> dict[str, Any]:
        return {
            "event": "summary",
            "is_well": self.is_well,
            "seconds": round(self.seconds, 1),
            "spark": {"state": self.spark_state, "words": self.spark_words},
            "control_room": self.control,
            "buses": [self._bus_as_json(bus) for bus in self.buses],
            "sites": [{"site": site.name} | asdict(self.counts[site.name]) for site in self.sites],
            "alerts_of_earlier_trips": self.earlier,
            "returned_to_the_edge": self.returned,
            "still_on_spark": self.stayed,
        }

    def _bus_as_json(self, bus: Bus) -> dict[str, Any]:
        took = self.took_ms(bus)
        return {
            "topic": bus.topic,
            "site": bus.site.name,
            "place": bus.processed_at,
            "frames": bus.acknowledged,
            "bytes": bus.bytes,
            "alerts": len(bus.alerts),
            "alerts_expected": len(bus.expected),
            "alerts_repeated": bus.repeated,
            "alerts_unexpected": bus.unexpected,
            "alerts_that_waited_for_spark": len(bus.alerts) - len(took),
            "median_ms": round(statistics.median(took), 1) if took else None,
        }

    def show(self) -> None:
        from rich.table import Table

        table = Table(title="What the buses told, and what came of it", title_justify="left")
        for name in ("topic", "site", "processed"):
            table.add_column(name, no_wrap=True)
        for name in ("frames", "alerts", "median", "waited"):
            table.add_column(name, justify="right", no_wrap=True)
        for bus in self.buses:
            told = self._bus_as_json(bus)
            is_well = not (bus.missing or bus.repeated or bus.unexpected)
            style = "green" if is_well else "red"
            table.add_row(
                bus.topic,
                bus.site.name,
                PLACES.get(bus.processed_at, "nowhere"),
                f"{bus.acknowledged:,}",
                f"[{style}]{len(bus.alerts)} of {len(bus.expected)}[/{style}]",
                "" if told["median_ms"] is None else f"{told['median_ms']:.1f} ms",
                str(told["alerts_that_waited_for_spark"] or ""),
            )
        output.console().print(table)
        where = Table(title="What the sites did", title_justify="left")
        where.add_column("site")
        for name in ("frames", "at the edge", "on Spark", "alerts out", "alerts in", "sent on"):
            where.add_column(name, justify="right")
        for site in self.sites:
            self._add_site(where, site)
        output.console().print(where)
        self._tell()

    def _add_site(self, table: Any, site: DemoSite) -> None:
        buses = [bus for bus in self.buses if bus.site == site]
        counts = self.counts[site.name]
        got = sum(len(bus.alerts) for bus in self.buses) if site.name == self.control else 0
        figures = (sum(bus.acknowledged for bus in buses), counts.processed, counts.delegated)
        table.add_row(
            site.name,
            *(f"{figure:,}" for figure in figures),
            f"{sum(len(bus.alerts) for bus in buses):,}",
            f"{got:,}",
            f"{counts.sent_bytes / 1000:.1f} kB",
        )

    def _tell(self) -> None:
        told, sent = sum(bus.bytes for bus in self.buses), sum(one.sent_bytes for one in self.counts.values())
        output.say(f"The buses told {told / 1000:.1f} kB; {sent / 1000:.1f} kB went to other sites, for the alerts.")
        output.say(f"Spark: {self.spark_words}", "" if self.spark_state in ("ended", "running") else "yellow")
        if self.returned:
            output.say(f"Back at the edge in the end, with their spools: {', '.join(self.returned)}.")
        if self.stayed:
            output.say(f"Still Spark's, from its log, the next time it runs: {', '.join(self.stayed)}.", "yellow")
        if self.earlier:
            output.say(f"{output.counted(self.earlier, 'alert')} came of an earlier trip that had broken off.")
        missing, repeated = (sum(getattr(bus, name) for bus in self.buses) for name in ("missing", "repeated"))
        unexpected = sum(bus.unexpected for bus in self.buses)
        if self.is_well:
            output.say("Every alert came that had to come, and none twice.", "green")
        else:
            words = f"{missing:,} alerts are missing, {repeated:,} came again, {unexpected:,} nobody expected."
            output.say(words, "bold red")
