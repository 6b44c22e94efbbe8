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
        """Return whether masks and shapes may depend on values, and the maximal rank.

        >>> __array_namespace_info__().capabilities()["boolean indexing"]
        True
        """
        result = cast("dict[str, bool | int]", {**_NUMPYS.capabilities()})
        frame = current_frame()
        if frame is not None and frame.abstract:  # values are not known, as under jit
            result["boolean indexing"] = result["data-dependent shapes"] = False
        return result

    def default_device(self) -> str:
        """Return the device of arrays for which no device is named."""
        return _NUMPYS.default_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        """Return the default data types of numbers by kind, such as "integral"."""
        return {**_NUMPYS.default_dtypes(device=cast("Any", device))}

    def devices(self) -> list[str]:
        """Return the devices that every machine has."""
        return list(_NUMPYS.devices())

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """Return the array API's data types by name, or only those of a ``kind``."""
        found: Any = _NUMPYS.dtypes(device=cast("Any", device), kind=cast("Any", kind))
        return {**found}
