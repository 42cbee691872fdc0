from engine.trainer.runs import *
