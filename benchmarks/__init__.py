"""Comparative measurements. Each is one command."""
