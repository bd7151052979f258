"""Comparative measurements. Each measurement is one command."""
