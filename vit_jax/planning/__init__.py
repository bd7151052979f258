"""Estimates for runs on TPUs that are not attached.

The modules read compiled steps, estimate time and memory, search for a mesh that fits, and print tables.
"""
