from engine.federated.flower.gateway import *
