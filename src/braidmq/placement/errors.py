"""What can be wrong with a problem or a plan, in words for people."""

from __future__ import annotations


class PlacementError(ValueError):
    """A problem that cannot be posed, or a plan that does not fit it."""
