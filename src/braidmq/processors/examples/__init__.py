"""Message processors to try out, and to begin one's own with."""
