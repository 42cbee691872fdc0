"""Selection, scatter and order by index."""
