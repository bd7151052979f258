"""Layouts of weight files by model family: tables that map tensors to parameters in both directions."""
