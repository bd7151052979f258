"""Readers of datasets, with one file for each storage format.

A reader is a function (name, row, split, *, ...) that returns a `Source`. `name` and `row` come from the catalog. The
keyword-only parameters are the keys of `config.data` that the reader supports.
"""
