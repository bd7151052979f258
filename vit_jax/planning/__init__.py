"""Plans of runs on TPUs that are not there: programs read, times and memory estimated."""
