"""Images sampled at other points: resizing, grids, regions."""
