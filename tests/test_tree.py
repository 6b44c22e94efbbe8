"""Pytrees: what is a leaf, in what order, and how it is named."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from arrayfn import tree


class Point(NamedTuple):
    x: object
    y: object


NESTED = {"b": (1, [2, None]), "a": Point(3, {"z": 4})}


def test_leaves_are_in_the_order_of_keys_and_none_is_no_leaf():
    assert tree.leaves(NESTED) == [3, 4, 1, 2]


def test_unflatten_is_the_inverse_of_flatten():
    leaves, structure = tree.flatten(NESTED)
    assert tree.unflatten(structure, leaves) == NESTED
    assert type(tree.unflatten(structure, leaves)["a"]) is Point


def test_map_over_several_trees_keeps_the_structure_of_the_first():
    doubled = tree.map(lambda x, y: x + y, NESTED, NESTED)
    assert doubled == {"b": (2, [4, None]), "a": Point(6, {"z": 8})}


def test_map_over_trees_of_other_structures_is_refused():
    with pytest.raises(ValueError, match=r"[Ee]xpected|mismatch"):
        tree.map(lambda x, y: x, (1, 2), (1, 2, 3))


def test_structures_compare_by_shape_alone():
    assert tree.structure((1, {"a": 2})) == tree.structure((3, {"a": "x"}))
    assert tree.structure((1, 2)) != tree.structure([1, 2])


def test_paths_index_the_tree():
    assert tree.paths({"w": (1, 2), "b": [3]}) == ["['b'][0]", "['w'][0]", "['w'][1]"]


def test_a_prefix_is_repeated_for_the_leaves_below_it():
    assert tree.broadcast_prefix((0, None), ({"a": 1, "b": 2}, [3, 4])) == [
        0,
        0,
        None,
        None,
    ]


def test_a_prefix_of_another_structure_is_refused():
    with pytest.raises(ValueError, match=r"prefix|mismatch|[Ee]xpected"):
        tree.broadcast_prefix((0, 0, 0), (1, 2))
