"""`sim`: trials in the simulator."""
