"""The coverage report: every absent rule has a reason, and names are counted right."""

from __future__ import annotations

import types

import pytest

from arrayfn.primitives.table import ROWS
from arrayfn.tools import coverage
from arrayfn.tools.cli import main


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in coverage.primitive_rows()}


@pytest.fixture(scope="module")
def names():
    return {names.theirs: names for names in coverage.compare_names()}


def cell(row, column):
    return row.cells[coverage.COLUMNS.index(column)]


def test_every_cell_has_a_rule_or_a_reason(rows):
    assert list(rows) == [row.name for row in ROWS]
    for row in rows.values():
        for column, value in zip(coverage.COLUMNS, row.cells, strict=True):
            assert value.text or value.reason, (row.name, column)


def test_cells_say_what_the_rows_say(rows):
    assert cell(rows["exp"], "CPU").text == "scalar"
    assert cell(rows["transpose"], "jvp").text == "linear"
    assert cell(rows["floor"], "jvp").text == "zero"
    assert cell(rows["gather"], "CUDA").text == "template"
    nextafter = cell(rows["nextafter"], "jvp")
    assert nextafter.is_empty
    assert "steps between" in nextafter.reason
    assert cell(rows["custom_vjp_linear"], "CPU").is_empty
    assert cell(rows["sort"], "CPU").text == "library"
    assert cell(rows["schur"], "CUDA").text == "host"


def test_what_a_gpu_lacks_has_the_remedy_as_its_reason(rows):
    for row in rows.values():
        absent = cell(row, "CUDA")
        if absent.is_empty and not cell(row, "CPU").is_empty:
            assert "device='cpu'" in absent.reason, row.name


def test_the_array_api_is_whole(names):
    standard = names["array_api"]
    assert standard.missing == ()
    assert standard.left_out == {}
    assert standard.total == 189


def test_traced_arrays_have_the_array_apis_methods(names):
    methods = names["array_api.array"]
    assert methods.missing == ()
    assert {"__add__", "__getitem__", "mT", "to_device"} <= set(methods.here)


def test_stored_names_stand_for_a_module_that_is_not_there():
    assert "fori_loop" in coverage.names_of("jax.lax")
    assert "linalg.cholesky" in coverage.names_of("array_api")


def test_names_of_a_module_leave_out_modules_and_private_names():
    module = types.ModuleType("example")
    module.public, module._private, module.inner = 1, 2, types.ModuleType("inner")
    assert coverage.public_names(module) == ["public"]


def test_each_name_left_out_is_one_that_there_is():
    for namespace, reasons in coverage.LEFT_OUT.items():
        names = coverage.names_of(namespace)
        for patterns in reasons.values():
            for pattern in patterns.split():
                found = [n for n in names if coverage.fnmatch(n, pattern)]
                assert found, (namespace, pattern)


def test_the_command_prints_tables_and_reasons(rows, names, capsys, monkeypatch):
    monkeypatch.setattr(coverage, "primitive_rows", lambda: iter(rows.values()))
    monkeypatch.setattr(coverage, "compare_names", lambda: iter(names.values()))
    assert main(["coverage"]) == 0
    text = capsys.readouterr().out
    assert f"{len(ROWS)} primitives" in text
    assert "the primitive is linear in none of its inputs" in text
    assert "array_api" in text
    assert max(map(len, text.splitlines())) < 250
