"""The data pipeline on Spark: the brokers' logs read, processed and answered.

`session(name)` of `braidmq.pipeline.session` is the way in: it gives a SparkSession that knows the format "braidmq".

    source/     the format "braidmq": logs as tables and streams
    sink/       rows that become publications, once each
    stateful/   message processors as streaming queries, and what edges delegate to them; `portable` takes the
                processor to the workers
    library/    ready-made pipelines
    trials/     many trials of the simulator, as tasks
    launch/     how Spark's processes are started here: Java, and the Python of its workers

Everything here needs the extra `spark` (`pip install "braidmq[spark]"`), and says so where it is missing; nothing else
of BraidMQ needs it. What runs on executors needs the standard library, numpy, pyarrow and msgspec: `package` ships
BraidMQ itself.
"""
