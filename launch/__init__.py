"""Starts runs on TPU VMs, on GKE, on your own hosts or on this machine, and watches them. Standard library only."""
