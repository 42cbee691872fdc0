"""Federated learning: many devices train one model, and their data stay where they are.

A device gets the parameters of a round, trains on its own data, and gives back what it has learned;
a server averages.  `parameters` is what travels, by name or as one buffer, `local` the part of a
round that a device does, and `output` what a server keeps.  Who holds which samples of a simulation
says `partition`; `updates` makes what travels smaller, and `message` files of it, for devices that
have nothing else.

`engine.federated.flower` does all of it with Flower (https://flower.ai), which has the transport,
the strategies of the server, and the simulation of many clients.  Nothing else here imports it.
"""
