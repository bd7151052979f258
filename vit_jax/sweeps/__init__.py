"""What a sweep is made of: trials, the processes that run them, what came of them, its record."""
