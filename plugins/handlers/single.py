"""One endpoint serves the whole request."""

from typing import ClassVar

import msgspec


class Single(msgspec.Struct, frozen=True):
    """A single leg on a unified endpoint."""

    roles: ClassVar[tuple[str, ...]] = ("unified",)
