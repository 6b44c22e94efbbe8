"""Names that arrayfn leaves out on purpose, by namespace and reason.

Names may be patterns: "*_p" means all names that end in _p.
"""

from __future__ import annotations

from typing import Final

_PRIMITIVES = "they are JAX's primitives themselves; ours are in primitives.table"
_DEVICES = "values are pure: XLA's tokens and sends between devices are not of them"
_DTYPES = (
    "data types are the array API's, float16, bfloat16, and for storage float8_e4m3fn, "
    "float8_e5m2, int4 and uint4"
)
_XLA = "they speak of XLA's compiler and its choices"

LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "jax": {
        _DEVICES: "Device Shard default_device device_count "
        "local_device_count host_* process_* copy_to_host_async live_arrays "
        "default_backend effects_barrier memory transfer_guard*",
        "programs over several devices have their own names": "P "
        "reshard make_array_from_* "
        "remove_size_one_mesh_axis_from_type auto_pcast",
        "Refs live as long as the function that made them": "free_ref",
        "jit(f, checks=...) checks one function, and names the line": "enable_checks",
        "leaks of traced values always raise": "check_tracer_leaks checking_leaks",
        "keys are of one generator": "debug_key_reuse default_prng_impl "
        "enable_custom_prng legacy_prng_key threefry_partitionable",
        "dtypes are the caller's, and promote as NumPy's": "enable_x64 "
        "numpy_dtype_promotion numpy_rank_promotion allow_f16_reductions float0 "
        "default_matmul_precision",
        "configuration is by arguments of jit": "log_compiles thread_guard "
        "explain_cache_misses make_user_context no_execution no_tracing "
        "ensure_compile_time_eval array_garbage_collection_guard "
        "print_environment_info softmax_custom_jvp jax2tf_*",
        "it is the module arrayfn.checkpoint_policies": "checkpoint_policies",
        "JAX has deprecated or not documented it": "ad ds fwd_and_bwd",
    },
    "jax.tree_util": {"classes are registered in one place": "default_registry"},
    "jax.debug": {
        "sharding is not printed": "*_sharding",
        "effects are primitives of their own": "*DebugEffect",
        "disable_jit lets Python's breakpoint stop; print logs": "breakpoint log",
    },
    "array_api.array": {
        "a traced value has no memory that another library could read": (
            "__dlpack__ __dlpack_device__"
        ),
    },
    "jax.numpy": {
        _DTYPES: "float4_* float6_* float8_e3m4 float8_e4m3 float8_e8m0fnu *fnuz "
        "int1 int2 uint1 uint2 character flexible object_",
        "NumPy has given these names up": "complex_ float_ ComplexWarning",
    },
    "jax.lax": {
        _PRIMITIVES: "*_p",
        _DEVICES: "after_all create_token shape_as_value dce_sink precv psend stage "
        "ragged_all_to_all",
        _XLA: "AccuracyMode Tolerance DotAlgorithm DotAlgorithmPreset "
        "approx_max_k approx_min_k",
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
    },
    "jax.nn": {
        "products of scaled blocks of 8 bits have no kernels here": (
            "get_scaled_dot_general_config scaled_dot_general scaled_matmul"
        ),
    },
}

# Parameters, as function.parameter, by namespace ("jax.*" is all of JAX's, "ufunc" are
# NumPy's and SciPy's elementwise functions).
_SIGNATURES = "arrayfn's own parameters are written out, with the same names"
_MEMORY_BY_NAME = "hints about memory, checks and algorithms are taken by name"
_ORDER_OF_NUMPY = "NumPy's order of parameters holds; give it by name"
_IMMUTABLE = "functions make new arrays: use the result"
_PER_DTYPE = "NumPy's scalar types take the number by position"
_SHARDING = "shardings are given to device_put and jit, not to single functions"

PARAMETERS_LEFT_OUT: Final[dict[str, dict[str, str]]] = {
    "ufunc": {
        "elementwise functions make new arrays: write x = exp(x)": "out",
        "elements that are not computed would be undefined: where(c, exp(x), y)": (
            "where"
        ),
        "convert the operands, and the result follows: exp(x.astype(dtype))": (
            "dtype casting signature"
        ),
        "results are row-major arrays without subclasses": "order subok",
        "moveaxis and expand_dims place the axes": "axes axis keepdims",
    },
    "numpy": {
        "results are arrays of arrayfn, whatever `like` is": "*.like",
        "arrays have no subclasses": "*.subok",
        "arrays have no fields to sort by": "*sort.order *partition.order",
        _MEMORY_BY_NAME: "*partition.kind",
        "every sort is stable": "*sort.stable",
        "a and b stand for both names of a limit: clip(x, a, b)": "clip.a_*",
        "ufuncs' options are explained at exp": "clip.kwargs",
        "nested sequences become arrays of all their axes": "array.ndmax",
        "a path is always searched, because it costs nothing once compiled": (
            "einsum.optimize"
        ),
        "einsum promotes its operands, and dtype is that of the result": (
            "einsum.kwargs"
        ),
        "NumPy's name of it is hidden behind its *operands": "einsum_path.einsum_call",
        "the default is float64 (int64) under another name": (
            "fromfunction.dtype indices.dtype"
        ),
        _SIGNATURES: "frompyfunc.kwargs",
        "compiled code cannot raise; jit(checks=True) does for indices": (
            "put.mode take.mode"
        ),
        "the function is required, as in NumPy": "vectorize.pyfunc",
        "the class of all arrays makes none": "ndarray.*",
    },
    "numpy.linalg": {
        "by default both triangles are averaged, so that gradients are Hermitian": (
            "eig*.UPLO"
        ),
    },
    "numpy.fft": {"it is taken by name": "*.device"},
    "scipy.special": {
        "the extension of gamma to negative integers is complex": "factorial.extend",
        "they pass on parameters that are written out": "sph_harm_y.*args",
        "ufuncs' options are explained at numpy.exp": "*.out sph_harm_y.kwargs",
    },
    "scipy.linalg": {
        _MEMORY_BY_NAME: "*.overwrite_* *.check_finite *.lwork *.lapack_driver *.tol "
        "*.blocksize",
        "solve a v = w b v, or bring the problem to this form": "eig*.type",
        "values would decide the shape; subset_by_index chooses": "*.subset_by_value",
        "inv makes no use of structure; solve does": "inv.assume_a inv.lower",
        "permutations are matrices, which are differentiable": "lu.p_indices",
        "ordered Schur forms have no kernels here": "schur.sort",
        "the default is 'gen': structure is not looked for in traced values": (
            "solve.assume_a"
        ),
        "solve with the transpose of a": "solve.transposed",
        "SciPy has deprecated it": "sqrtm.disp",
    },
    "scipy.sparse.linalg": {
        "solvers run compiled, and call nothing between steps": "*.callback*",
        "it is 20, of which None is SciPy's name": "gmres.restart",
        "only the norm of Frobenius is defined here; densify for others": "norm.*",
        "SuperLU is the one library here": "spsolve.use_umfpack",
    },
    "scipy.integrate": {
        "the steps are those of solve_ivp; its options are LSODA's": "odeint.*",
        "options of all methods are parameters": "solve_ivp.options",
    },
    "scipy.optimize": {
        "BFGS with its own derivatives is the one method; options are by name": (
            "minimize.*"
        ),
    },
    "scipy.ndimage": {
        "JAX's order of parameters, of SciPy's without output and splines": (
            "map_coordinates.*"
        ),
    },
    "scipy.signal": {
        _MEMORY_BY_NAME: "*.overwrite_data",
        "it is 'hann' under its new name": "*.window",
        "the scaling is 'spectrum'": "*stft.scaling",
    },
    "scipy.interpolate": {
        "compiled code cannot raise: points outside take fill_value": (
            "RegularGridInterpolator.bounds_error"
        ),
        "splines' solvers are SciPy's": "RegularGridInterpolator.solver*",
    },
    "scipy.spatial.transform": {
        "rotations are made by from_quat and its like, which have it": "Rotation.*"
    },
    "jax.*": {
        _SHARDING: "*.out_sharding *.sharding",
    },
    "jax": {
        "types have no meshes or references of their own": "ShapeDtypeStruct.*",
        "new_ref makes them": "Ref.*",
        "devices are those of the process's one kind": "*devices.backend "
        "local_devices.host_id local_devices.process_index pmap.backend",
        "axes of a mesh are of one type: shard_map checks what varies": (
            "make_mesh.axis_types"
        ),
        "types of traced values have no shardings to infer axes from": "smap.in_axes",
        "pmap is shard_map over all devices: use that for what it lacks": (
            "pmap.devices pmap.static_broadcasted_argnums pmap.axis_size "
            "pmap.donate_argnums"
        ),
        "the specs of operands are said where they are used": "shard_map.in_specs",
        "JAX has deprecated it": "*.concrete *.reduce_axes",
        "arrays are copied to a device; where they were does not matter": (
            "device_put.src device_put.donate device_put.may_alias"
        ),
        "the default device is that of jit's argument device": "jit.backend",
        "options of XLA's compiler": "jit.compiler_options",
        "arguments are put onto devices, and results stay there": "jit.*_shardings",
        "make_program is its name here, and its options are by name": "make_jaxpr.*",
        "mapped axes are not sharded by their names": "vmap.sum_match",
    },
    "jax.image": {"None is the full precision": "*.precision"},
    "jax.test_util": {"the step is that of float64": "check_*.eps"},
    "jax.numpy": {
        "two operands, as in NumPy; functools.reduce combines more": "*.args",
        "elementwise functions make new arrays: write x = exp(x)": "*.out",
        "elements that are not computed would be undefined: where(c, exp(x), y)": (
            "*.where"
        ),
        _ORDER_OF_NUMPY: "histogram*.weights histogram*.density *stack.dtype",
        _IMMUTABLE + "; inplace=True, which NumPy means, is refused": "*.inplace",
        _PER_DTYPE: "*.x",
        "the default means the same, under another name": (
            "arange.step clip.arr copy.order gradient.edge_order indices.dtype "
            "fromfunction.dtype vectorize.excluded einsum.optimize "
            "einsum_path.optimize searchsorted.method"
        ),
        "astype copies, as in the array API": "astype.copy",
        "arrays have no fields to sort by": "*sort.order",
        "it is private to JAX": "*._dot_general",
        _SIGNATURES: "*.kwargs",
        "negative indices count from the end, as everywhere": "*.wrap_negative_indices",
    },
    "jax.numpy.linalg": {
        "by default both triangles are averaged, so that gradients are Hermitian": (
            "eig*.UPLO"
        ),
        _ORDER_OF_NUMPY: "matrix_rank.rtol pinv.rtol",
    },
    "jax.lax": {
        "values do not carry over which axes they vary": "all_gather.to",
        "kernels have one accuracy, which the page on numerics states": "*.accuracy",
        "pairs of padding give either convention": (
            "conv_transpose.use_consistent_padding"
        ),
        "convert the operands": "mul.out_dtype",
        "its parameters are written out": "random_gamma_grad.args",
        "it is private to JAX": "*._split_transpose",
    },
    "jax.lax.linalg": {
        "eigenvectors have derivatives always": "eig.enable_eigvec_derivs",
        "ordered Schur forms have no kernels here": "schur.s*",
        "a perturbed system is another system": "tridiagonal_solve.perturb_singular",
    },
    "jax.random": {
        "the default is the same number": "ball.p lognormal.sigma",
    },
    "jax.nn": {
        "reverse mode keeps what it needs; logsumexp gives the residual": (
            "dot_product_attention.return_residual"
        ),
        "the default is float64, the default float": "one_hot.dtype",
    },
    "jax.scipy.special": {
        _MEMORY_BY_NAME: "*.series_order",
        "derivatives come from grad; n_max is given by name": (
            "sph_harm_y.diff_n sph_harm_y.n_max"
        ),
    },
    "jax.scipy.stats": {
        "a singular covariance has no density": "*.allow_singular",
    },
    "jax.scipy.linalg": {
        _MEMORY_BY_NAME: "*.overwrite_* *.check_finite *.turbo *.debug *.blocksize "
        "*.lapack_driver",
        "SciPy has given it up for subset_by_index": "eigh.eigvals",
        "solve a v = w b v, or bring the problem to this form": "eigh.type",
        "eigenvectors need no random numbers": "eigh_tridiagonal.key",
        "SciPy has no such option: expm(triu(A))": "expm.upper_triangular",
        "None is 'symmetric'": "*pascal.kind",
        "SciPy's order of parameters holds; give it by name": "solve.assume_a",
    },
    "jax.ops": {"None is 'drop'": "*.mode"},
    "jax.scipy.signal": {_MEMORY_BY_NAME: "*.precision *.overwrite_data"},
    "jax.scipy.spatial.transform": {
        "an interpolation is made by Slerp.init": "Slerp.*"
    },
}

# Defaults of ours that mean the same as a default of theirs.
SAME_DEFAULTS: Final[dict[str, tuple[str, ...]]] = {
    "None": ("False", "()", "'low'", "'backward'"),
    "float": ("None",),  # NumPy 2.5 writes a dtype of float64 so
}
