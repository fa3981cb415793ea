"""A fleet of devices at a few brokers: a topic and a filter a device, by the tens of thousands.

`python -m bench.fleet` starts real broker processes on loopback and drives them with `fleetload.c`. Each part is one
module with its figures, its measurement and its targets. What the figures mean: docs/fleet.md.
"""
