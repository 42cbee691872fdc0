"""One training by several processes, the *ranks* of a group: what they need of each other.

`group.py` has the protocol, `mpi.py` a group over MPI.  docs/cluster.md tells how to use it.
"""
