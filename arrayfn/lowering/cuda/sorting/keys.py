"""Sort keys: unsigned integers in the order of the elements, as text of kernels.

A key is the low ``bits`` bits of an i64. The key of a float consists of its bits, with
the sign bit inverted if it is positive and all bits inverted if it is negative; NaN has
the largest key. So -0.0 comes before 0.0 in a sort of elements. In a sort of positions
both zeros have one key, and keep their order.
"""

from __future__ import annotations

from typing import Final, Literal

from arrayfn import dtypes
from arrayfn.dtypes import DType, short_name
from arrayfn.records import frozen

_FLOATS: Final = {  # the integer that bits are read as, and the bits of infinity
    dtypes.float16: ("u16", 0x7C00),
    dtypes.bfloat16: ("u16", 0x7F80),
    dtypes.float32: ("i32", 0x7F800000),
    dtypes.float64: ("i64", 0x7FF0000000000000),
}


Component = Literal["", "imag", "real", "nans"]
COMPONENTS: Final[tuple[Component, ...]] = ("imag", "real", "nans")
"""The components by which complex numbers are sorted in turn, the decisive one last."""


@frozen
class Keys:
    """The keys of a dtype, and the texts that compute them.

    Args:
        dtype: The dtype of elements.
        for_positions: Whether positions are sorted, so that equal elements such as 0.0
            and -0.0 need equal keys.
        descending: Whether to sort in descending order.
        component: The component of complex numbers to sort by; empty for other numbers.
            ``nans`` says which of real and imaginary part are NaN.
    """

    dtype: DType
    for_positions: bool = False
    descending: bool = False
    component: Component = ""

    @property
    def bits(self) -> int:
        """The number of bits of a key."""
        # A component has half of a complex number's bits; two flags fit into 8.
        if self.component:
            return 8 if self.component == "nans" else 4 * self.dtype.itemsize
        return 8 * self.dtype.itemsize

    @property
    def word(self) -> str:
        """The dtype of keys in memory, u32 or i64.

        All components of a complex dtype have the same, that of its real part.
        """
        size = self.dtype.itemsize // (2 if self.component else 1)
        return "u32" if size <= 4 else "i64"

    @property
    def word_dtype(self) -> DType:
        """``word`` as a NumPy dtype."""
        return dtypes.uint32 if self.word == "u32" else dtypes.int64

    @property
    def max_key(self) -> int:
        """The largest key. With 64 bits it is -1, whose bits are all set."""
        return (1 << self.bits) - 1 if self.bits < 64 else -1

    @property
    def _sign_bit(self) -> int:
        """The highest bit of a key."""
        return 1 << (self.bits - 1) if self.bits < 64 else -(1 << 63)

    @property
    def to_word(self) -> str:
        """The function that converts a key to ``word``; empty if it is an i64."""
        return "convert_i64_u32" if self.word == "u32" else ""

    @property
    def from_word(self) -> str:
        """The function that converts a ``word`` to a key; empty if it is an i64."""
        return "convert_u32_i64" if self.word == "u32" else ""

    def encode(self, x: str = "x") -> str:
        """Return lines that compute ``key`` of the element ``x``, an expression.

        Gives, for int32:

            key = (convert_i32_i64(x) ^ 2147483648) & 4294967295

        A number is NaN if it differs from itself.
        """
        name = short_name(self.dtype)
        if self.component == "nans":
            lines = [
                "key = i64(0)",
                f"component = imag_{name}({x})",
                "if component != component:",
                "    key = i64(1)",
                f"component = real_{name}({x})",
                "if component != component:",
                "    key = key + 2",
            ]
        elif self.component:
            real = Keys(dtypes.real_of(self.dtype), self.for_positions)
            lines = [
                f"component = {self.component}_{name}({x})",
                real.encode("component"),
            ]
        elif self.dtype in _FLOATS:
            lines = self._encode_float(x)
        else:
            lines = [f"key = {self._encode_integer(x)}"]
        if self.descending:
            lines.append(f"key = key ^ {self.max_key}")
        return "\n".join(lines)

    def _encode_integer(self, x: str) -> str:
        """Return the expression of the key of an integer or boolean ``x``.

        Signed integers have the sign bit inverted.
        """
        name = short_name(self.dtype)
        # The bits are the key: the sort compares digits, which have no sign.
        if self.dtype == dtypes.uint64:
            return f"bitcast_u64_i64({x})"
        name = "u8" if self.dtype == dtypes.bool_ else name
        convert = x if name == "i64" else f"convert_{name}_i64({x})"
        if self.dtype in dtypes.SIGNED:
            return f"({convert} ^ {self._sign_bit}) & {self.max_key}"
        return convert

    def _encode_float(self, x: str) -> list[str]:
        """Return lines that compute ``key`` of the float ``x``.

        Gives, for float32, to sort elements:

            raw = convert_i32_i64(bitcast_f32_i32(x))
            magnitude = raw & 2147483647
            key = magnitude ^ 2147483648
            if (raw & 2147483648) != 0:
                key = magnitude ^ 2147483647
            if magnitude > 2139095040:
                key = i64(4294967295)
        """
        # The integer dtype of a float's bits in a kernel, and the bits of infinity.
        raw, infinity = _FLOATS[self.dtype]
        bits = f"bitcast_{short_name(self.dtype)}_{raw}({x})" if raw[0] == "i" else x
        word = bits if raw == "i64" else f"convert_{raw}_i64({bits})"
        magnitude = self.max_key ^ self._sign_bit
        lines = [
            f"raw = {word}",
            f"magnitude = raw & {magnitude}",
            f"key = magnitude ^ {self._sign_bit}",
            f"if (raw & {self._sign_bit}) != 0:",
            f"    key = magnitude ^ {magnitude}",
        ]
        if self.for_positions:
            lines += ["if magnitude == 0:", f"    key = i64({self._sign_bit})"]
        return [
            *lines,
            f"if magnitude > {infinity}:",
            f"    key = i64({self.max_key})",
        ]

    def decode(self) -> str:
        """Return lines that compute ``x``, the element whose key is ``key``.

        Gives, for int32: ``x = convert_i64_i32(key ^ 2147483648)``.
        """
        name = short_name(self.dtype)
        lines = [f"key = key ^ {self.max_key}"] if self.descending else []
        if self.dtype in _FLOATS:
            raw, _ = _FLOATS[self.dtype]
            lines += [
                f"raw = key ^ {self.max_key}",
                f"if (key & {self._sign_bit}) != 0:",
                f"    raw = key ^ {self._sign_bit}",
            ]
            word = "raw" if raw == "i64" else f"convert_i64_{raw}(raw)"
            x = f"bitcast_{raw}_{name}({word})" if raw[0] == "i" else word
        elif self.dtype == dtypes.bool_:
            x = "convert_i64_u8(key)"
        elif self.dtype == dtypes.uint64:
            x = "bitcast_i64_u64(key)"
        elif self.dtype in dtypes.SIGNED:
            x = f"key ^ {self._sign_bit}"
            x = x if name == "i64" else f"convert_i64_{name}({x})"
        else:
            x = f"convert_i64_{name}(key)"
        return "\n".join([*lines, f"x = {x}"])
