"""`bench`: load on a broker, and what it makes of it."""
