"""`braidmq place`: where clients should be at home, planned on Spark and carried out on a running braid."""
