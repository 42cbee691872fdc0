"""The least nanoseconds of a step, over blocks of steps: FOLDER CHECKPOINT BLOCKS STEPS."""

import sys
import time

sys.path.insert(0, sys.argv[1])
import mlp  # type: ignore[import-not-found]  # the build's
import numpy as np

trainer = mlp.Trainer(sys.argv[2])
ports = trainer.state._handle.phases[0]["train"][0]
inputs = [np.zeros(port["shape"], port["dtype"]) for port in ports]
blocks, steps = map(int, sys.argv[3:5])
least = 1 << 62
for _ in range(blocks):
    begin = time.perf_counter_ns()
    for _ in range(steps):
        trainer.step(*inputs)
    least = min(least, (time.perf_counter_ns() - begin) // steps)
print(least)
