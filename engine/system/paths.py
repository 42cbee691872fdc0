"""Paths of a model's tensors and nodes in the module from which it was exported.

Exporters keep the names of parameters where they can.  A weight that is transposed during export
gets another, `val_34` or `onnx::MatMul_133`, and the exporter makes up the names of nodes.  If the
file records it, the path of such a weight is its name in the module, `encoder.0.fc.weight`, and the
path of a node is its submodule, `encoder.0.fc`.  Names do not change in artifacts, checkpoints and
exported models, but patterns of names also match paths.

The metadata of a model carry them.  graphs/io/module_paths.py finds them in a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from engine.base.errors import ModelError, join_names, suggest_nearest
from engine.system.files import NOTE

KEY = "paths"  # of `Interface.notes`
METADATA = NOTE + KEY  # of the metadata of a model
SHOWN = 12  # names that a message lists


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of a model's tensors and nodes.

    values: the names in the module of initializers that are called otherwise.  Two of them may have
        one, as the copies of a weight that is used twice.
    nodes: the submodules of nodes, by the names of the nodes.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: Mapping[str, str], key: str = METADATA) -> Paths:
        """Return the paths that the metadata of a model carry; none where they do not.

        Raises:
            ModelError: they are damaged.
        """
        return _parse(metadata.get(key, ""))

    def write(self) -> str:
        """Return what `of` reads."""
        modules: dict[str, list[str]] = {}
        for name, module in self.nodes.items():
            modules.setdefault(module, []).append(name)
        return json.dumps([dict(self.values), modules], separators=(",", ":"))

    def select(self, values: Iterable[str], nodes: Iterable[str]) -> Paths:
        """Return the paths of these tensors and nodes, where they are known."""
        return Paths(
            {name: self.values[name] for name in values if name in self.values},
            {name: self.nodes[name] for name in nodes if name in self.nodes},
        )

    def name_value(self, name: str) -> str:
        """Return the path of a tensor; its name, if that is all that is known."""
        return self.values.get(name, name)

    def list_names(self, name: str) -> tuple[str, ...]:
        """Return all names that stand for a tensor: its own, and its path."""
        path = self.values.get(name, name)
        return (name,) if path == name else (name, path)

    def title_value(self, name: str) -> str:
        """Return what a message calls a tensor."""
        path = self.name_value(name)
        return repr(name) if path == name else f"{name!r} ({path})"

    def find_module(self, node: str) -> str:
        """Return the submodule that a node is of; empty if it is not known.

        Nodes that are made of another, as its gradients, have names that begin with that node's.
        """
        name = node.partition("_Grad/")[0]
        while name and name not in self.nodes:
            name = name.rpartition("/")[0]
        return self.nodes.get(name, "")

    def title_node(self, node: str) -> str:
        """Return what a message calls a node."""
        module = self.find_module(node)
        return f"{node!r} of {module}" if module else repr(node)

    def label_node(self, node: str) -> str:
        """Return what a table calls a node: its submodule before its name, unless that says it."""
        module = self.find_module(node)
        return f"{module}: {node}" if module and module not in node.replace("/", ".") else node

    def matches(self, name: str, pattern: str) -> bool:
        """Return whether a pattern, as of `fnmatch`, matches a tensor's name or path."""
        return any(fnmatchcase(each, pattern) for each in self.list_names(name))

    def spell_patterns(self, patterns: Iterable[str], known: Iterable[str]) -> list[str]:
        """Return patterns that match by names alone what the given ones match by paths, too.

        known: the names that they are for.
        """
        names, spellings = list(known), dict[str, None]()
        for pattern in patterns:
            matched = [name for name in names if self.matches(name, pattern)]
            by_path = [name for name in matched if not fnmatchcase(name, pattern)]
            if len(by_path) < len(matched) or not matched:
                spellings[pattern] = None
            spellings.update(dict.fromkeys(by_path))
        return list(spellings)

    def suggest_nearest(self, pattern: str, known: Iterable[str]) -> str:
        """Return what a message says of the names that are like a pattern which matches none."""
        paths = [self.name_value(name) for name in known]
        advice = suggest_nearest(pattern, paths)
        return advice or f"; they are {join_names(paths, SHOWN)}" if paths else ""

    def resolve(self, names: Iterable[str], known: Iterable[str]) -> list[str]:
        """Return these names, with paths replaced by the names of their tensors.

        known: the names of tensors; these stay, as do names that are not paths.
        """
        own, tensors = set(known), dict[str, None]()
        by_path: dict[str, list[str]] = {}
        for value, path in self.values.items():
            if value in own:
                by_path.setdefault(path, []).append(value)
        for name in names:
            tensors.update(dict.fromkeys([name] if name in own else by_path.get(name, [name])))
        return list(tensors)


@lru_cache(maxsize=8)
def _parse(text: str) -> Paths:
    if not text:
        return Paths()
    try:
        values, modules = json.loads(text)
        return Paths(
            {str(name): str(path) for name, path in values.items()},
            {str(name): str(module) for module, names in modules.items() for name in names},
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"the note of the paths of its module is damaged: {error!r}") from None
