"""Mirrors: other brokers that hold a copy of this broker's journal, and the copies that this one holds of others'.

    `choosing`      which brokers are to be mirrors: asked whether they may, nearest first
    `own_copies`    how far the copies of this broker's journal are; a `mirror_stream` feeds each of them
    `held_copies`   the copies of other brokers' journals that are here, and what their owners send

A broker that has no journal has no mirrors, and is none.
"""
