from engine.backend import *
