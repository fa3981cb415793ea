"""Covers: brokers meet where what they publish and what they want may overlap, and know exactly what of it does."""
