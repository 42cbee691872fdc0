"""Makers of the data of the product, for a checkout: no wheel has them, nothing imports them."""
