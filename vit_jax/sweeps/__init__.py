"""The parts of a sweep: its trials, the processes that train them, the ranking of what came out, the record."""
