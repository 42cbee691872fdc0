from engine.profiling import *
