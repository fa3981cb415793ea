"""The broker's log: publications to the topics that it is told to keep, in order, to be read later.

Readers: `open_log` (`opening`) gives a `LogSource` (`source`), over the files of a folder (`reader.LogReader`) or over
the admin port of a broker (`remote.RemoteLog`).

The broker: `write_buffer` and `shared_memory` take rows, `writer_process` is its side of the process (`writer`) that
writes them, `journal` keeps what publishers wait for.

The files: `log.Log` appends commits of batches (`commit`, `rows`, `payloads`) to segments (`segment`, `index`,
`offsets`) within their bounds (`retention`), and `compaction` makes Parquet of old ones.

Import from the modules: they need the extra `log` (pyarrow and numpy), and most of them start slowly for it.
"""
