from engine.onnxblock import *
