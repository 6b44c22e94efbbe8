"""The coverage report: every absent rule has a reason, and names are counted right."""

from __future__ import annotations

import pytest

from arrayfn.primitives.table import ROWS
from arrayfn.tools import coverage
from arrayfn.tools.cli import main


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in coverage.primitive_rows()}


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


def test_the_command_prints_tables_and_reasons(rows, capsys, monkeypatch):
    monkeypatch.setattr(coverage, "primitive_rows", lambda: iter(rows.values()))
    assert main(["coverage"]) == 0
    text = capsys.readouterr().out
    assert f"{len(ROWS)} primitives" in text
    assert "the primitive is linear in none of its inputs" in text
    assert "names of" in text
    assert "parameters of" in text
    assert "sum.where" not in text
    assert max(map(len, text.splitlines())) < 250
