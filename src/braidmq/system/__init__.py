"""What several layers need of the operating system: a lock on a folder, and messages between processes.

`folder_lock` keeps two processes out of one folder; `framing` sends structs over pipes and sockets.
"""
