from engine.data.labels import *
