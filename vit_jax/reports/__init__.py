"""HTML reports about runs, sweeps or weights: results, curves, and the inside of models."""
