"""One training by several processes, the *ranks* of a group: what they need of each other.

`group.py` has the protocol, `mpi.py` a group over MPI, `launchers.py` finds out whether a launcher
as `mpirun` has started this process.  docs/cluster.md tells how to use it:

    from engine import Trainer
    from engine.distributed import world

    trainer = Trainer.from_onnx("classifier.onnx", "cross_entropy", group=world())
"""

from engine.distributed.launchers import world

__all__ = ["world"]
