from engine.trainer.pytorch.export import *
