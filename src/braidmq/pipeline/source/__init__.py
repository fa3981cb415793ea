"""The format "braidmq" of Spark: what brokers have logged, as a table or a stream.

`format` has the data source itself and its batch reader, `stream` the micro-batches; `options` reads what a program
sets, `logs` finds the logs and asks where they stand, `plan` cuts them into tasks, `reading` is what a task does.
"""
