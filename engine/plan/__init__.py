"""Plans: their types, their states, their file format and the checks that they pass."""
