"""Trials of publish/subscribe methods in the simulator: build a network, publish, measure, check.

`trial` runs one. It chooses from `methods` and `patterns`, lets `brokers` play their roles, has faults by a
`fault_schedule`, measures with a `meter`, and gives `figures`, which become `rows` of a table. `lookups` are trials of
an overlay alone.
"""
