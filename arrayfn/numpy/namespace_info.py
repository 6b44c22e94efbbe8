"""What the namespace can do, under the array API's name."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np

from arrayfn.tracing.frames import current_frame

_NUMPYS: Final = np.__array_namespace_info__()


class __array_namespace_info__:  # noqa: N801 - the array API's name
    """Capabilities, data types and devices, as the array API asks for them.

    They are NumPy's, with one exception. Under ``jit`` masks have no values, so an
    array cannot be indexed by a mask there, and no shape can depend on values.
    """

    def capabilities(self) -> dict[str, bool | int]:
        """Whether masks and shapes may depend on values, and how many axes there are.

        >>> __array_namespace_info__().capabilities()["boolean indexing"]
        True
        """
        found = cast("dict[str, bool | int]", {**_NUMPYS.capabilities()})
        frame = current_frame()
        if frame is not None and frame.abstract:
            found["boolean indexing"] = found["data-dependent shapes"] = False
        return found

    def default_device(self) -> str:
        """The device of an array if no device is named."""
        return _NUMPYS.default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        """The default data types of numbers, by kind."""
        return {**_NUMPYS.default_dtypes(device=cast("Any", device))}

    def devices(self) -> list[str]:
        """The devices that every machine has."""
        return list(_NUMPYS.devices())

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """The array API's data types by name: all of them, or those of a ``kind``."""
        found: Any = _NUMPYS.dtypes(device=cast("Any", device), kind=cast("Any", kind))
        return {**found}
