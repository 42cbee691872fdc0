from engine.trainer.history import *
