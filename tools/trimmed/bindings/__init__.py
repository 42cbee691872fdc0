"""Bindings of builds: the C API in other languages, each written from the header's declarations.

A language is a file here that says how values of each kind cross over to C, and a folder of
templates for what no rule gives: loading the library, exceptions, buffers, the package's metadata.
A function that is added to `runtime/model.h` is added to every language.
"""
