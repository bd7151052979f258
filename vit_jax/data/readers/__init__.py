"""Readers: one file for each way in which labelled images are stored.

A reader is (name, row, split, *, ...) -> Source, for a name of the catalog and its row; its keyword-only parameters are
the keys of `config.data` that it understands.
"""
