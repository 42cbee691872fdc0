from engine.inference import *
