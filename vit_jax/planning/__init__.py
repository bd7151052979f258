"""The parts of a plan: the compiled step read, time and memory estimated, a search for what fits, tables."""
