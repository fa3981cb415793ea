"""What several layers need of the operating system."""
