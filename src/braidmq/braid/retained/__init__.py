"""Retained messages: replicas kept where they were published, and the queries of new subscriptions."""
