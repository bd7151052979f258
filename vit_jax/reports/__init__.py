"""A page about runs, sweeps or weights: what came of them, how they went, and what is inside."""
