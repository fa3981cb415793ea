"""What a broker is called, as far as its configuration says it.

Rows of its log, messages for its processors and the list of its sites carry this name: a log and a checkpoint of before
find each other by it. In the braid, a broker without a name of its own has one that was made up with its store and is
kept there (`braid.identity`).
"""

from __future__ import annotations

from braidmq.config.settings import BraidConfig, Config
from braidmq.net.addresses import format_address, parse_address


def broker_name(config: Config) -> str:
    """Its name in the braid, or the address that it always has there, or that of logs and statistics."""
    braid = config.braid
    return config.name if braid is None else braid.name or lasting_address(braid) or config.name


def lasting_address(braid: BraidConfig) -> str | None:
    """Where other brokers reach this one, if that is the same at each start: its name before names were kept."""
    host, port = parse_address(braid.listen, port_min=0)
    return braid.advertise or (format_address(host, port) if port else None)
