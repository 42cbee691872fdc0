"""The ground that every other room stands on: errors, limits, checks of arguments."""
