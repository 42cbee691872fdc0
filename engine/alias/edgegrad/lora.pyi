from engine.lora import *
