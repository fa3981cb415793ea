"""A flow to begin with: the bus service of Ishihara et al. 2021, Fig 2."""
