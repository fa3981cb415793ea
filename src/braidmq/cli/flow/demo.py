"""The brokers of `braidmq flow demo`, in this process; the flow and its buses are in another."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from braidmq.cli.demo.process import DemoProcess
from braidmq.cli.flow.demonstration import FlowDemoPlan, FlowDemoSite
from braidmq.cli.up import (
    BESIDE,
    ENDS,
    announce_sites,
    announce_sites_json,
    broker_environment,
    own_name,
    read_sites,
    serve_braid,
    start_errors,
)

if TYPE_CHECKING:
    from braidmq.config.settings import Config
    from braidmq.server.sites import Site


def run_demo(port: int, data: Path, brokers: int, seconds: float, *, once: bool, json_lines: bool) -> int:
    from braidmq.config.load import load

    clusters = ["cloud1", *(f"cloud1/edge{number}" for number in range(1, brokers))]
    overrides: dict[str, object] = {"listeners[0].port": port, "data": str(data), "log.level": "warning"}
    overrides |= {"admin.port": 0 if port == 0 else None}
    process = DemoProcess("braidmq.cli.flow.demonstration", once=once)

    def read_all() -> list[Config]:
        return read_sites(brokers, partial(load, None, broker_environment()), overrides, {}, clusters)

    def announce(sites: list[Site]) -> None:
        if json_lines:
            announce_sites_json(sites)
        else:
            announce_sites(sites, "It ends after the summary, or with Ctrl-C." if once else ENDS)
        told = [
            FlowDemoSite(site.name, cluster, next(one for one in site.addresses if urlsplit(one).scheme == "mqtt"))
            for site, cluster in zip(sites, clusters, strict=True)
        ]
        process.start(FlowDemoPlan(told, seconds, own_name(), json_lines, once))

    try:
        with start_errors(BESIDE.format("flow demo")):
            code = serve_braid(read_all, announce)
    finally:
        result = process.end()
    return code or (result if once else 0)
