"""The commands of `edgegrad`, a file each.  `table.py` lists them; a call imports one of them."""
