"""From nothing to the first finished training step, as a user's program would get there.

python first_step.py ARTIFACTS [STEPS [BUDGET]]      a folder with artifacts and batch.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from engine import Trainer

folder = Path(sys.argv[1])
batch = np.load(folder / "batch.npz")
trainer = Trainer(folder, memory_budget=sys.argv[3] if len(sys.argv) > 3 else None)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
    trainer.step(batch["x"], batch["y"])
