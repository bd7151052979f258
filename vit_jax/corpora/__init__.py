"""Corpora: whatever a reader reads, verified and written once as a sharded array_record dataset of TFDS.

`write.write` is the whole of it on one machine, `beam.write` on many.
"""
