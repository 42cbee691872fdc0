from engine.artifacts import *
