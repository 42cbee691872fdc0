from engine.custom import *
