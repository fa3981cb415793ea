"""Shared subscriptions as one group in the whole braid."""
