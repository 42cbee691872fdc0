from engine.trainer.callbacks import *
