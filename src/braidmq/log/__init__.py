"""The broker's log: publications to the topics that it is told to keep, in order, for those who read them later.

`Log` writes, `LogReader` reads from the folder, `RemoteLog` from a broker's admin port; both read alike. Needs the
extra `log` (pyarrow and numpy).
"""
