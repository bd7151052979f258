"""Readers: one file for each way in which labelled images are stored."""
