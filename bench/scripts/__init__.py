"""Programs that benches start: in other Pythons, in installed wheels, with other checkouts."""
