from engine.trainer.schedules import *
