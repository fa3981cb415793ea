"""Selecting one component of many."""
