"""Helpers for the tests with clients that others wrote."""
