"""How the processes of Spark are started on this machine: Java, and the Python of its workers.

`java` finds a Java, `gateway` starts and ends it, `class_archive` halves its start. `worker_python` gives workers this
Python, with `daemon` (or `task_daemon`) and `planner` in place of Spark's own modules; `wrapper_script` writes the
scripts that do so, and `installed_pyspark` keeps processes from compiling PySpark out of its zip.
"""
