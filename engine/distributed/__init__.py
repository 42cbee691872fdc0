"""Training by several processes, the *ranks* of a group, and their communication.

`group.py` has the protocol, `mpi.py` a group over MPI, and `launchers.py` detects whether a
launcher such as `mpirun` has started this process.  See docs/cluster.md for its use:

    from edgegrad import Trainer
    from edgegrad.distributed import world

    trainer = Trainer.from_onnx("classifier.onnx", "cross_entropy", group=world())
"""

from engine.distributed.launchers import world

__all__ = ["world"]
