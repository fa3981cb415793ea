"""The benchmarks: BraidMQ beside every other broker that is installed, in one run on one machine.

`python -m bench` (or `make bench`) starts the brokers, drives each with `mqttload.c`, and prints a table with ratios.
What is measured, and why ratios: docs/benchmarks.md.
"""
