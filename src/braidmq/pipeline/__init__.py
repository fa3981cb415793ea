"""The data pipeline on Spark: what the brokers logged, read, processed and answered.

`session(name)` of `braidmq.pipeline.session` is the way in: it gives a SparkSession that knows the format "braidmq".
Everything here needs the extra `spark` (`pip install "braidmq[spark]"`), and says so where it is missing; nothing else
of BraidMQ needs it.
"""
