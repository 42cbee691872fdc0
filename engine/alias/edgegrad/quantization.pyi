from engine.quantization import *
