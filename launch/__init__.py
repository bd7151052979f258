"""Starts runs on TPU VMs, on GKE, on hosts of one's own or here, and watches them. Standard library only."""
