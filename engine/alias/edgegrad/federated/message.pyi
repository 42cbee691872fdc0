from engine.federated.message import *
