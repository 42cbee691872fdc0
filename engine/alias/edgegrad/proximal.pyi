from engine.proximal import *
