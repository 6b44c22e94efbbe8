"""Names that arrayfn leaves out on purpose, by namespace and reason.

Names may be patterns: "*_p" means all names that end in _p.
"""

from __future__ import annotations

from typing import Final

_PRIMITIVES = "they are JAX's primitives themselves; ours are in primitives.table"
_DEVICES = "values are pure: XLA's tokens and sends between devices are not of them"
_DTYPES = "arrayfn has the array API's data types, float16 and bfloat16"
_XLA = "they speak of XLA's compiler and its choices"

LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "array_api.array": {
        "a traced value has no memory that another library could read": (
            "__dlpack__ __dlpack_device__"
        ),
    },
    "jax.numpy": {
        _DTYPES: "float4_* float6_* float8_* int1 int2 int4 uint1 uint2 uint4 "
        "character flexible object_",
        "they call Python for each element; vectorize maps a function": (
            "frompyfunc ufunc"
        ),
        "NumPy has given these names up": "complex_ float_ ComplexWarning",
    },
    "jax.lax": {
        _PRIMITIVES: "*_p",
        _DEVICES: "after_all create_token shape_as_value dce_sink precv psend stage "
        "ragged_all_to_all",
        _XLA: "AccuracyMode Tolerance DotAlgorithm DotAlgorithmPreset composite "
        "platform_dependent approx_max_k approx_min_k RandomAlgorithm "
        "rng_bit_generator",
        "keys make random numbers: arrayfn.random.uniform": "rng_uniform",
        "they are type aliases for annotations": "DotDimensionNumbers "
        "ConvGeneralDilatedDimensionNumbers PrecisionLike",
        "products of scaled blocks have no kernels here": "scaled_dot",
        "they are steps of the gradient of random.gamma": "random_gamma_grad "
        "igamma_grad_a",
        "they compute shapes for JAX's own rules; eval_shape tells any": (
            "conv_general_permutations conv_general_shape_tuple conv_shape_tuple "
            "conv_transpose_shape_tuple reduce_window_shape_tuple padtype_to_pads"
        ),
    },
    "jax.lax.linalg": {
        "the polar decomposition is arrayfn.scipy.linalg.polar": "qdwh",
        _PRIMITIVES: "*_p",
        _XLA: "EigImplementation EighImplementation SvdAlgorithm",
    },
    "jax.random": {
        _PRIMITIVES: "*_p",
        "keys are a pytree of uint32 words, without a dtype of their own": "key_dtype",
    },
    "jax.nn": {
        "products of scaled blocks of 8 bits have no kernels here": (
            "get_scaled_dot_general_config scaled_dot_general scaled_matmul"
        ),
    },
}
