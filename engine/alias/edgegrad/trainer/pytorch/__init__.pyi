from engine.trainer.pytorch import *
