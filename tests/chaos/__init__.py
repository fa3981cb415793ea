"""Real brokers under real faults: processes are killed, links are cut; nothing that was acknowledged may be lost."""
