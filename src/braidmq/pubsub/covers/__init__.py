"""Covers: brokers stand in the overlay for few broad filters, and tell each other exactly what they want below them."""
