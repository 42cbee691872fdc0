from engine.trainer import *
