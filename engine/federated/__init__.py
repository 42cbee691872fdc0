"""Federated learning: what clients and servers of a federation need besides their transport."""
