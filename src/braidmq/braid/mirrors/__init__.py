"""Copies of what a broker has, at other brokers: how they are made, and what is done with them when it is gone."""
