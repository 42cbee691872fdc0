"""Makers of the product's data, for a checkout: wheels do not contain them, and nothing imports
them.
"""
