"""FedProx on a client, see `engine.training.proximal`."""

from engine.training.proximal import ANCHOR, MU, is_of_term, set_anchors

__all__ = ["ANCHOR", "MU", "is_of_term", "set_anchors"]
