"""Attention kernels in Pallas, and their tiling."""
