from engine.federated.folder import *
