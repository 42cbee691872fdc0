"""Walks: every method of every language with values that nobody should pass.

The calls and the programs that make them are written from the description of the API, so that a
new function is walked by itself.  C says what each call returns: its program is compiled with
sanitizers, and every other language must return the same, or refuse earlier in words of its own.  A
refused call must leave the parameters, the optimizer's state and the properties of the model as
they were.

A walk leaves out values that its language cannot express, such as a phase with another number or a
slice that is null in Rust: `Tongue.takes` says which.
"""
