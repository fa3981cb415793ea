"""The message processors of one broker: worker processes, what they are fed, and what becomes of their results.

`processing` puts the parts together. A publication goes feed → intake → work_queue → runner → worker_process and comes
back as a notification; assignments, assignment_store and reassignment say which topics are processed here and which on
Spark; restoring makes spools from the log after a crash. Import from the modules: `Processing` is in `processing`.
"""
