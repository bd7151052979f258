"""Components of a sweep: its trials, the processes that train them, the ranking of the results, and the record."""
