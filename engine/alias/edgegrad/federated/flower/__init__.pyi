from engine.federated.flower import *
