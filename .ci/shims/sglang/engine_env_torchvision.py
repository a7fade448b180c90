"""Lets torchvision import beside a CPU build of torch.

Its compiled operators are built against CUDA and do not load there, and then the import fails where
it describes two operators that nobody defined. This module, loaded at start-up by a .pth file,
defines their schemas just before torchvision is imported. Nothing can call them: they have no code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# torch forgets a library's schemas when the library object goes.
_libraries: list[object] = []


class _DefineOperators(importlib.abc.MetaPathFinder):
    """Finds no module: it only watches for the import of torchvision."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            define_operators()
        return None


def define_operators() -> None:
    """Define the schemas, unless there is no torch to define them in."""
    try:
        from torch.library import Library
    except ImportError:
        return
    library = Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)


sys.meta_path.insert(0, _DefineOperators())
