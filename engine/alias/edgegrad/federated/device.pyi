from engine.federated.device import *
