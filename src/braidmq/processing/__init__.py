"""Message processors at the edge: worker processes of this broker, what they are fed, and what becomes of it."""
