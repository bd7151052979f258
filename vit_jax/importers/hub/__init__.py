"""JSON files that hubs store next to weights: architecture, preprocessing and class names, read and written."""
