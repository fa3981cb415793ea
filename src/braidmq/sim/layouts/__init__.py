"""Overlays with the links that their protocols reach by messages, made at once: for networks too large to grow."""
