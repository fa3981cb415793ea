"""Tests of the log: real files, real brokers."""
