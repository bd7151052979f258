"""Corpora: images of any reader, verified and written once as a sharded array_record dataset of TFDS.

`writer.write` writes a corpus on one machine, and `beam.write` writes it on many machines.
"""
