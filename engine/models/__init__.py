"""Architectures as forward graphs, built node by node: no file and no exporter is needed."""
