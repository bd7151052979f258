"""HTML reports about runs, sweeps or weights: results, curves, and weights and attention inside of models."""
