"""Keyed tables over an append-only file: what a commit changes is one write, and the tables are what these add up to.

    `journal`      a journal that is open for writing: commit, seal, epoch
    `journal_copy` a copy of another one, block by block; `journal_reader` reads what it is sent
    `contents`     what a folder adds up to; also of a copy that nobody writes to
    `compaction`   the live rows of what is sealed, as one snapshot; `compactor` is the process that does it

The stream of blocks has positions, byte by byte, that never go back. It is cut into segments, files of bounded size. A
snapshot stands for everything before its position. Values are whatever MessagePack can hold: this package knows nothing
of what they mean.
"""
