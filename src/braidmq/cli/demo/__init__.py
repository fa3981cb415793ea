"""`braidmq demo`: buses at two sites, their processor at the edge and on Spark, and a control room at a third site."""
