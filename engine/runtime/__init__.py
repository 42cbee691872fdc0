"""Plans and what runs them; numpy and the standard library alone."""
