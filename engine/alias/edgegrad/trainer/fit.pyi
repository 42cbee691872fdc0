from engine.trainer.fit import *
