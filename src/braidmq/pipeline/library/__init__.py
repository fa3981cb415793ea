"""Ready-made pipelines: each a function that makes one DataFrame out of another, the rows of a log.

    from braidmq.pipeline.library.windows import windows

    windows(spark.read.format("braidmq").load("data"), every_s=60).show()

`catalogue` lists them; `braidmq pipeline run NAME` runs them from the command line.
"""
