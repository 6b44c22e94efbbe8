"""The verifier: plans with one thing changed are refused, and the message says what."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

import arrayfn as af
import arrayfn.numpy as anp
from arrayfn import lax, nn
from arrayfn.backends.cuda.emulator.plan import run_plan
from arrayfn.dtypes import bfloat16, short_name
from arrayfn.errors import VerificationError
from arrayfn.ir import ArrayType
from arrayfn.lowering.compiled import CompiledProgram
from arrayfn.lowering.cuda import destinations
from arrayfn.lowering.cuda.solvers import substitution
from arrayfn.lowering.options import Options
from arrayfn.lowering.plan import (
    Branch,
    BufferArgument,
    ExecutionPlan,
    Kernel,
    KernelCall,
    Loop,
    Parameter,
    Step,
    kernel_calls,
    numbered,
)
from arrayfn.lowering.verify import ProofCounts, Report, footprints, verify
from arrayfn.lowering.verify.checked_run import is_small
from arrayfn.lowering.verify.interpreter import Interpreter
from tests.backends.test_cuda_loops import CASES as LOOPS
from tests.backends.test_cuda_runtime import GENERATED
from tests.lowered_on_gpu import lowered

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def on_cpu(function: Callable[..., Any], *arguments: Any) -> CompiledProgram:
    return af.jit(function).lower(*arguments).compiled_program


def with_call(compiled: CompiledProgram, number: int, **changes: Any) -> Any:
    """``compiled`` with another call in the place of step ``number``."""
    steps = list(compiled.plan.steps)
    call = steps[number]
    assert isinstance(call, KernelCall)
    steps[number] = replace(call, **changes)
    return with_steps(compiled, steps)


def with_steps(compiled: CompiledProgram, steps: Sequence[Step]) -> CompiledProgram:
    return replace(compiled, plan=replace(compiled.plan, steps=tuple(steps)))


def with_step_replaced(
    steps: Sequence[Step], old: Step, new: Sequence[Step]
) -> tuple[Step, ...]:
    """``steps`` with ``new`` for ``old``, which may be inside a loop or branch."""
    result: list[Step] = []
    for step in steps:
        if step is old:
            result += new
        elif isinstance(step, Loop):
            result.append(replace(step, body=with_step_replaced(step.body, old, new)))
        elif isinstance(step, Branch):
            branches = (with_step_replaced(b, old, new) for b in step.branches)
            result.append(replace(step, branches=tuple(branches)))
        else:
            result.append(step)
    return tuple(result)


def with_text(compiled: CompiledProgram, old: str, new: str) -> CompiledProgram:
    """``compiled`` with a part of its first kernel's text replaced."""
    kernel, *others = compiled.kernels
    assert isinstance(kernel, Kernel)
    assert old in kernel.source
    source = kernel.source.replace(old, new)
    changed = replace(kernel, source=source, key=source)
    return replace(compiled, kernels=(changed, *others))


def of_kernel(
    source: str, sizes: dict[str, int], items: int, threads: int = 0
) -> CompiledProgram:
    """A plan of one kernel: its arguments are inputs, and its last one the output."""
    made = on_cpu(lambda x: x + 1, X)
    temporary = made.plan.buffers[0]
    kinds = {
        name: np.dtype(np.int32 if name.startswith("index") else np.float32)
        for name in sizes
    }
    buffers = [
        replace(
            temporary,
            kind="output" if name == list(sizes)[-1] else "input",
            index=0 if name == list(sizes)[-1] else k,
            type=ArrayType((size,), kinds[name]),
            nbytes=4 * size,
        )
        for k, (name, size) in enumerate(sizes.items())
    ]
    kernel = Kernel(
        "k",
        source,
        source,
        tuple(Parameter(n, short_name(kinds[n]) + "*") for n in sizes),
        threads=threads,
    )
    call = KernelCall("k", tuple(BufferArgument(n) for n in range(len(sizes))), items)
    plan = ExecutionPlan(tuple(buffers), (call,))
    types = tuple(b.type for b in buffers if b.kind == "input")
    return replace(made, kernels=(kernel,), plan=plan, input_types=types)


def refused(compiled: CompiledProgram, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(compiled)


def test_too_many_items_write_past_the_end_of_the_output() -> None:
    compiled = on_cpu(lambda x: x * 2, X)
    assert verify(compiled).unproved == []
    wrong = with_call(compiled, 0, items=13)
    refused(
        wrong,
        r"step 0, kernel elementwise_0, line \d+ \(test_verify.py:\d+\): elements 0 to "
        r"12 of argument \w+ are accessed, and input 0 has 0 to 11 there \(48 bytes\)",
    )


def test_all_of_a_value_is_not_written_where_a_part_of_it_goes() -> None:
    # What a reshape of no rows of a computed value was once lowered to.
    compiled = on_cpu(lambda x: x * 2, X)
    buffers = list(compiled.plan.buffers)
    empty = replace(buffers[1].type, shape=(0,))
    buffers[1] = replace(buffers[1], type=empty, nbytes=0)
    wrong = replace(compiled, plan=replace(compiled.plan, buffers=tuple(buffers)))
    refused(wrong, r"elements 0 to 11 of argument \w+ .* output 0 is empty there")


def test_an_output_that_is_not_written_whole_is_refused() -> None:
    compiled = on_cpu(lambda x: x * 2, X)
    # The results are read after all steps.
    message = "cpu: bytes 44 to 48 of output 0 are not written, and the results are"
    refused(with_call(compiled, 0, items=11), message)


def test_an_element_that_two_items_write_is_refused() -> None:
    compiled = on_cpu(lambda x: anp.sum(x, axis=1), X)
    wrong = with_text(compiled, "_out[i0] =", "_out[i0 // 2] =")
    refused(wrong, "items 0 and 1 both access element 0 of .*, and write it")


HEAD = "from arrayfn.lowering.scalars import abs_i64, i8, max_i64, min_i64\n"


@pytest.mark.parametrize(
    "lines",
    [
        "for i in range(begin, end):\n  out[i - begin] = x[i]",
        "for i in range(begin, end):\n  out[end - 1 - i] = x[i]",
        "begin = 0\nfor i in range(begin, end):\n  out[i] = x[i]",
        "for i in range(begin, end):\n  out[i] = x[11 + abs_i64(0 - i)]",
        "for i in range(begin, end):\n  out[i] = x[i8(i + 250) - 250]",
        "for i in range(begin, end):\n  out[i] = x[i]\nelse:\n  out[12] = x[0]",
        "for i in range(begin, end):\n  out[i] = x[(i << 62) >> 62]",
        "for i in range(begin, end):\n  out[i] = x[(i << 64) + 11]",
        "for i in range(begin, end):\n  out[i] = x[(i * 2**62) // 2**62]",
        "for i in range(begin, end):\n  out[i] = x[i + 99 if i + 2**63 - 1 < 0 else i]",
        "min_i64 = max_i64\nfor i in range(begin, end):\n  out[i] = x[min_i64(i, 0)]",
    ],
)
def test_wrong_kernels_written_by_hand_are_not_proved(lines: str) -> None:
    body = "".join(f"  {line}\n" for line in lines.split("\n"))
    source = f"{HEAD}def k(x, out, begin, end):\n{body}"
    assert not is_proved(of_kernel(source, {"x": 12, "out": 12}, 12))


def test_other_meanings_of_known_names_are_not_proved() -> None:
    source = (
        "from arrayfn.lowering.scalars import max_i64 as min_i64\n"
        "def k(x, out, begin, end):\n"
        "  for i in range(begin, end):\n    out[i] = x[min_i64(i, 11)]\n"
    )
    assert not is_proved(of_kernel(source, {"x": 12, "out": 12}, 12))
    right = source.replace("max_i64 as ", "")
    assert is_proved(of_kernel(right, {"x": 12, "out": 12}, 12))


def is_proved(compiled: CompiledProgram) -> bool:
    """Whether a plan is neither refused nor left unproved."""
    try:
        return verify(compiled).unproved == []
    except VerificationError:
        return False


def test_an_item_does_not_read_what_another_writes() -> None:
    source = """
def k(x, begin, end):
    for i in range(begin, end):
        x[i] = x[7 - i]
"""
    compiled = of_kernel(source, {"x": 8}, 8)
    refused(compiled, "items 0 and 7 both access element 0 of x, and write it")


def in_one_buffer(source: str, items: int, threads: int = 0, offset: int = 0) -> Any:
    """A kernel whose ``x`` and ``out`` are one buffer, ``offset`` bytes apart."""
    compiled = of_kernel(source, {"x": 64, "out": 64 + offset // 4}, items, threads)
    arguments = BufferArgument(1), BufferArgument(1, offset)
    return with_call(compiled, 0, arguments=arguments)


def moved_by_items(element: str) -> str:
    return f"""
def k(x, out, begin, end):
    for i in range(begin, end):
        out[i] = x[{element}]
"""


def test_items_read_through_one_argument_what_they_write_through_another() -> None:
    assert verify(in_one_buffer(moved_by_items("i"), 64)).unproved == []
    apart = in_one_buffer(moved_by_items("i"), 32, offset=128)
    refused(apart, "bytes 0 to 128 of output 0 are read as x, and no step before has")
    refused(
        in_one_buffer(moved_by_items("63 - i"), 64),
        "items 0 and 63 both access element 0 of x and out, of one buffer, and write",
    )
    refused(
        in_one_buffer(moved_by_items("i"), 64, offset=4),
        "items 0 and 1 both access element 1 of x and out, of one buffer, and write it",
    )


def moved_by_threads(between: str) -> str:
    return f"""
def k(x, out):
    value = x[63 - thread_index()]
    {between}
    out[thread_index()] = value
"""


def test_a_barrier_stands_between_a_read_and_a_write_by_another_thread() -> None:
    right = in_one_buffer(moved_by_threads("barrier()"), 1, threads=64)
    assert verify(right).unproved == []
    wrong = in_one_buffer(moved_by_threads("pass"), 1, threads=64)
    refused(wrong, "threads 0 and 63 both access element 0 of x and out, of one buffer")
    guarded = "if block_index() > 0:\n        barrier()"
    some = in_one_buffer(moved_by_threads(guarded), 1, threads=64)
    refused(some, "threads 0 and 63 both access element 0 of x and out, of one buffer")


def test_threads_that_store_do_not_read_what_another_writes() -> None:
    source = """
from arrayfn.lowering.scalars import min_i64
def k(x):
    thread = thread_index()
    i = min_i64(thread, 31)
    value = x[{read}]
    if thread < 32:
        x[i] = value
"""
    # Threads without an element of their own read another one, and store nothing.
    right = of_kernel(source.format(read="i"), {"x": 32}, 1, 64)
    assert verify(right).unproved == []
    wrong = of_kernel(source.format(read="31 - i"), {"x": 32}, 1, 64)
    refused(wrong, "threads 0 and 31 both access element 0 of x, and write it")


def test_an_iteration_of_a_loop_is_compared_with_the_one_before() -> None:
    source = """
def k(x, out):
    for step in range(2):
        {first}
        barrier()
        {second}
"""
    one = "out[thread_index() + step * 32] = 1.0"
    other = "x[(63 - thread_index()) - step * 32] = 2.0"
    right = in_one_buffer(source.format(first=one, second="pass"), 1, threads=32)
    assert verify(right).unproved == []
    both = in_one_buffer(source.format(first=one, second=other), 1, threads=32)
    text, *_ = verify(both).unproved
    assert "both access element" in text


def test_what_threads_read_by_index_through_another_argument_is_run() -> None:
    source = """
from arrayfn.lowering.cuda.vocabulary import block_index, thread_index
from arrayfn.lowering.scalars import clamp_i64, convert_i32_i64, i64
def k(index, x, out):
    i = block_index() * 32 + thread_index()
    at = clamp_i64(convert_i32_i64(index[i]), i64(0), i64(63))
    out[i] = x[at]
"""
    compiled = of_kernel(source, {"index": 64, "x": 64, "out": 64}, 2, 32)
    arguments = BufferArgument(0), BufferArgument(2), BufferArgument(2)
    wrong = with_call(
        replace(compiled, target="cuda"), 0, arguments=arguments, writes=(2,)
    )
    report = verify(wrong)
    assert "blocks 0 and 1 both access element 0 of x and out" in report.unproved[0]
    with pytest.raises(VerificationError, match="written by another through another"):
        ProofCounts().add(wrong, report)


def test_two_writers_of_an_element_in_one_kernel_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a sum once was that replaces an element of the array it is of."""

    def replaced(x: Any) -> Any:
        return x.at[4].set(anp.sum(x))

    x = np.arange(5.0, dtype=np.float32)
    assert verify(lowered(replaced, x)).unproved == []
    monkeypatch.setattr(destinations.CopyElision, "may_write", lambda *_: False)
    with pytest.raises(
        VerificationError,
        match=r"kernel rows_0, line \d+ \(test_verify.py:\d+\): threads 0 and 4 both "
        "access element 4 of a_out and c_out, of one buffer, and write it",
    ):
        lowered(replaced, x)


def test_a_product_does_not_write_over_its_factor() -> None:
    compiled = on_cpu(lambda x: x @ x, np.ones((40, 40), np.float32))
    call = compiled.plan.steps[0]
    assert isinstance(call, KernelCall)
    assert verify(compiled).unproved == []
    result, *_ = map(BufferArgument, call.writes)
    _, *others = call.arguments
    refused(with_call(compiled, 0, arguments=(result, *others)), "as a, it writes")


def test_what_no_step_has_written_is_not_read() -> None:
    compiled = on_cpu(lambda x: anp.sin(anp.sum(x, axis=0, keepdims=True)) @ x.T, X)
    _, *others = compiled.plan.steps
    assert others
    refused(with_steps(compiled, others), "no step before has written them|not written")


def test_temporaries_that_are_both_needed_do_not_overlap() -> None:
    def function(x: Any) -> Any:
        return (x @ x.T) @ (x + x @ (x.T @ x))

    compiled = on_cpu(function, np.ones((40, 40), np.float32))
    assert verify(compiled).unproved == []
    buffers = [
        replace(b, offset=0) if b.kind == "temporary" else b
        for b in compiled.plan.buffers
    ]
    wrong = replace(compiled, plan=replace(compiled.plan, buffers=tuple(buffers)))
    refused(wrong, "share memory|not written|has written")


def test_a_gather_is_within_its_array_for_all_indices() -> None:
    def source(last: int) -> str:
        return f"""
from arrayfn.lowering.scalars import clamp_i64, convert_i32_i64, i64
def k(index, x, out, begin, end):
    for i in range(begin, end):
        place = clamp_i64(convert_i32_i64(index[i]), i64(0), i64({last}))
        out[i] = x[place]
"""

    sizes = {"index": 5, "x": 8, "out": 5}
    assert verify(of_kernel(source(7), sizes, 5)).unproved == []
    text, *_ = verify(of_kernel(source(8), sizes, 5)).unproved
    assert "elements 0 to 8 of argument x are accessed, and input 1 has 0 to 7" in text


def test_a_barrier_that_only_some_threads_come_to_is_refused() -> None:
    def source(guard: str) -> str:
        return f"""
from arrayfn.lowering.cuda.vocabulary import barrier, block_index, thread_index
def k(x, out):
    i = block_index() * 32 + thread_index()
    if {guard}:
        barrier()
    if i < 40:
        out[i] = x[i]
"""

    sizes = {"x": 40, "out": 40}
    assert verify(of_kernel(source("block_index() == 0"), sizes, 2, 32)).unproved == []
    wrong = of_kernel(source("thread_index() < 16"), sizes, 2, 32)
    refused(wrong, "line 6: not all threads of a block come to this barrier")


def of_counts(count: str) -> CompiledProgram:
    """Threads that wait for each other in a loop whose ``count`` a text says."""
    source = f"""
def k(x, out):
    row = quotient(thread_index(), 8)
    step = quotient(block_index(), 2)
    at = min_i64(step * 8 + row, 25)
    for iteration in range({count}):
        barrier()
    out[block_index() * 64 + thread_index()] = x[at]
"""
    return of_kernel(source, {"x": 26, "out": 512}, 8, threads=64)


def test_blocks_may_go_round_a_loop_with_a_barrier_more_often_than_others() -> None:
    assert verify(of_counts("step")).unproved == []
    refused(of_counts("row"), "not all threads of a block come to this barrier")


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_the_kernel_of_triangular_systems_is_not_refused(
    left: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(substitution, "MIN_ROWS", 1)
    a = np.eye(300, dtype=dtype)
    b = np.ones((300, 9) if left else (9, 300), dtype)
    for lower in (True, False):
        options = {"left_side": left, "lower": lower}
        lowered(lambda a, b, o=options: lax.linalg.triangular_solve(a, b, **o), a, b)


@pytest.mark.parametrize("mode", [None, "persistent"])
@pytest.mark.parametrize("name", LOOPS)
def test_loops_on_a_gpu_are_not_refused(name: str, mode: Any) -> None:
    function, *arguments = LOOPS[name]
    report = verify(lowered(function, *arguments, options=Options(mode=mode)))
    assert not [text for text in report.unproved if "not understood" in text]


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", GENERATED)
def test_generated_attention_is_not_refused(name: str, dtype: Any) -> None:
    (B, T, S, N, K, H), options = GENERATED[name]
    q = np.ones((B, T, N, H), dtype)
    k, v = (np.ones((B, S, K, H), dtype) for _ in range(2))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return anp.sum(nn.dot_product_attention(q, k, v, **options).astype(np.float32))

    lowered(af.grad(loss, argnums=(0, 1, 2)), q, k, v)


@pytest.mark.parametrize("test", ["x[i] > 0", "0 < x[i]"])
def test_a_comparison_of_data_may_come_to_either(test: str) -> None:
    def source(far: int) -> str:
        return f"""
def k(x, out, begin, end):
    for i in range(begin, end):
        out[i] = x[{far}] if {test} else x[i]
"""

    sizes = {"x": 8, "out": 8}
    assert verify(of_kernel(source(7), sizes, 8)).unproved == []
    text, *_ = verify(of_kernel(source(8), sizes, 8)).unproved
    assert "elements 8 to 8 of argument x are accessed" in text


def test_what_the_analysis_cannot_handle_is_not_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: Interpreter) -> NoReturn:
        raise KeyError("a symbol")

    compiled = on_cpu(lambda x: x * 2, X)
    # What is known of the kernel, or of one with the same text, says nothing.
    monkeypatch.setattr(footprints, "_CACHE", OrderedDict())
    with monkeypatch.context() as broken:
        broken.setattr(Interpreter, "run", fails)
        (text, *_) = verify(compiled).unproved
    assert "not understood: KeyError: 'a symbol'" in text
    assert verify(compiled).unproved == []  # that is not remembered


def test_an_element_that_two_blocks_write_is_refused() -> None:
    compiled = lowered(lambda x: anp.sum(x, axis=1), np.ones((300, 8), np.float32))
    assert verify(compiled).unproved == []
    wrong = with_text(compiled, "block_index() *", "quotient(block_index(), 2) *")
    refused(wrong, "both access element 0 of .*, and write it")


def test_a_vector_that_is_not_aligned_is_refused() -> None:
    compiled = lowered(lambda x: x + 1, np.ones(4096, np.float32))
    wrong = with_text(compiled, "_in, first,", "_in, first + 1 - 1 % n0,")
    assert verify(wrong).unproved == []
    call = compiled.plan.steps[0]
    assert isinstance(call, KernelCall)
    read, *others = call.arguments
    assert isinstance(read, BufferArgument)
    moved = with_call(compiled, 0, arguments=(replace(read, offset=4), *others))
    refused(moved, "a vector of 4 elements .* is not aligned|are accessed")


def test_a_loop_whose_windows_leave_the_array_is_refused() -> None:
    def function(w: Any, x: Any) -> Any:
        return lax.scan(lambda h, y: (anp.tanh(h @ w + y), h), x[0], x)

    compiled = on_cpu(function, np.ones((64, 64)), np.ones((5, 64)))
    assert verify(compiled).unproved == []
    steps = list(compiled.plan.steps)
    place = next(k for k, s in enumerate(steps) if isinstance(s, Loop))
    loop = steps[place]
    assert isinstance(loop, Loop)
    steps[place] = replace(loop, count=6)
    message = rf"step {place}: slice \d lies at bytes .* in iteration 5, which has"
    refused(with_steps(compiled, steps), message)


def looped_and_branched() -> CompiledProgram:
    """A plan with steps before, in, between and after a loop and a branch."""

    def function(p: Any, w: Any, x: Any) -> Any:
        h, rows = lax.scan(lambda h, y: (anp.tanh(h @ w + y), h), x[0], x @ w)
        z = lax.cond(p, lambda h: anp.sin(h) @ w, lambda h: w @ anp.cos(h), h)
        return (rows @ w) * z

    compiled = on_cpu(function, True, np.ones((64, 64)), np.ones((5, 64)))
    assert verify(compiled).unproved == []
    return compiled


def test_messages_number_steps_as_the_printed_plan_does() -> None:
    compiled = looped_and_branched()
    steps, printed = compiled.plan.steps, str(compiled.plan)
    assert len(list(kernel_calls(steps))) > len(steps)
    for number, step in numbered(steps):
        if isinstance(step, KernelCall):
            assert f"step {number}: {step.kernel}(" in printed
            wrong = with_step_replaced(steps, step, [replace(step, arguments=())])
            message = f"step {number}, kernel {step.kernel}: its arguments are not"
            refused(with_steps(compiled, wrong), message)


def test_messages_name_the_loop_or_branch_that_lacks_a_value() -> None:
    compiled = looped_and_branched()
    steps = compiled.plan.steps
    by_number = dict(numbered(steps))
    assert {Branch, Loop} <= {type(step) for step in by_number.values()}
    for number, step in by_number.items():
        if isinstance(step, Branch):
            makes_index = next(s for s in steps if step.index in s.writes)
            without = with_step_replaced(steps, makes_index, [])
            message = f"step {number - 1}: .* are not written, and a branch is chosen"
            refused(with_steps(compiled, without), message)
        elif isinstance(step, Loop):
            carried = {c.next for c in step.carries}
            body = [s for s in step.body if not carried.intersection(s.writes)]
            without = with_step_replaced(steps, step, [replace(step, body=tuple(body))])
            message = f"step {number}: .* are not written, and a loop carries it"
            refused(with_steps(compiled, without), message)


def test_steps_after_a_loop_without_iterations_keep_their_numbers() -> None:
    compiled = looped_and_branched()
    steps = compiled.plan.steps
    loop = next(s for s in steps if isinstance(s, Loop))
    rows = compiled.plan.buffers[loop.slices[-1].source].label
    reader = next(
        number
        for number, s in numbered(steps)
        if isinstance(s, KernelCall) and loop.slices[-1].source in s.reads
    )
    wrong = with_step_replaced(steps, loop, [replace(loop, count=0)])
    message = rf"step {reader}, kernel \w+: bytes 0 to 2560 of {rows} are read"
    refused(with_steps(compiled, wrong), message)


def test_pivots_outside_swap_nothing_on_a_gpu_either() -> None:
    def order(pivots: Any) -> Any:
        return lax.linalg.lu_pivots_to_permutation(pivots, 5)

    for pivots in ([3, 1, 4], [9, -1, 2], [2**31 - 1, 4, -(2**31)]):
        given = np.array(pivots, np.int32)
        (emulated,) = run_plan(lowered(order, given), [given])
        np.testing.assert_array_equal(emulated, af.jit(order)(given))


def test_what_is_not_proved_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "arrayfn.lowering.verify.proof_counts.COUNTS", counts := ProofCounts()
    )

    def source(guard: str) -> str:
        return f"""
from arrayfn.lowering.scalars import convert_i32_i64
def k(index, x, out, begin, end):
    for i in range(begin, end):
        square = convert_i32_i64(index[i]) * convert_i32_i64(index[i])
        if {guard}:
            out[i] = x[square]
        else:
            out[i] = x[0]
"""

    sizes = {"index": 500, "x": 70, "out": 500}
    # Nothing is known of a product of data but its bounds, which are far.
    right = of_kernel(source("convert_i32_i64(index[i]) == 7"), sizes, 500)
    counts.add(right, verify(right))
    assert (counts.proved, counts.run, counts.unproved) == (0, 1, 0)
    wrong = of_kernel(source("square < 82"), sizes, 500)
    with pytest.raises(VerificationError, match="run with checked memory, element "):
        counts.add(wrong, verify(wrong))
    large = of_kernel(source("square < 70"), sizes, 5000)
    counts.add(large, Report("large", 1, ["whether it is so"]))
    assert counts.unproved == 1


def test_a_plan_is_verified_when_it_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[CompiledProgram] = []
    monkeypatch.setattr("arrayfn.lowering.verify.check", lambda c, d: seen.append(c))
    monkeypatch.setenv("ARRAYFN_VERIFY", "0")
    on_cpu(lambda x: x - 3, X)
    assert not seen
    monkeypatch.setenv("ARRAYFN_VERIFY", "1")
    on_cpu(lambda x: x - 4, X)
    lowered(lambda x: x - 4, X)
    assert [c.target for c in seen] == ["cpu", "cuda"]


def test_a_plan_is_run_with_what_it_computes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arrayfn.lowering.verify.COUNTS", counts := ProofCounts())
    numbers = np.array([1, 2])

    def f(x: Any) -> Any:
        return anp.intersect1d(x, af.lax.convert_element_type(numbers, x.dtype), size=2)

    x = np.array([1.5, 2, 0.75])
    program = af.jit(f).lower(x).compiled_program
    assert program.once is not None
    assert (counts.unproved, counts.run + counts.proved) == (0, 2)
    np.testing.assert_array_equal(af.jit(f)(x), [2, 2])


def test_a_kernel_that_is_a_long_loop_is_not_run() -> None:
    def long(x: Any) -> Any:
        return af.lax.fori_loop(0, 10**9, lambda k, x: anp.sin(x), x)

    assert not is_small(af.jit(long).lower(1.0).compiled_program, 4096)
    short = af.jit(lambda x: af.lax.fori_loop(0, 9, lambda k, x: anp.sin(x), x))
    assert is_small(short.lower(1.0).compiled_program, 4096)


def test_indices_that_were_promised_to_differ_do_so_in_a_second_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "arrayfn.lowering.verify.proof_counts.COUNTS", counts := ProofCounts()
    )

    def put(x: Any, index: Any, values: Any) -> Any:
        return x.at[index].set(values, unique_indices=True)

    x, index = np.zeros(9, np.float32), np.arange(5)
    compiled = lowered(put, x, index, np.ones(5, np.float32))
    report = verify(compiled)
    assert "threads 0 and 1 both access element 0" in report.unproved[0]
    counts.add(compiled, report)
    assert (counts.run, counts.unproved) == (1, 0)
