"""How a broker comes into its braid, stays in it and leaves: introducers, gossip, presence and upkeep."""
