from engine.trainer.metrics import *
