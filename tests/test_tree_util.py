"""Pytrees under JAX's names: keys of paths, structures, classes with keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import arrayfn as af
from arrayfn import tree, tree_util
from arrayfn.errors import ArgumentError
from arrayfn.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey


class Point(NamedTuple):
    x: Any
    y: Any


NESTED = {"w": [1, (2,)], "p": Point(3, 4), "n": None}


def test_paths_consist_of_keys():
    pairs, structure = tree_util.tree_flatten_with_path(NESTED)
    assert structure == tree_util.tree_structure(NESTED)
    assert pairs == [
        ((DictKey("p"), GetAttrKey("x")), 3),
        ((DictKey("p"), GetAttrKey("y")), 4),
        ((DictKey("w"), SequenceKey(0)), 1),
        ((DictKey("w"), SequenceKey(1), SequenceKey(0)), 2),
    ]
    path = pairs[3][0]
    assert (path[0].key, path[1].idx, pairs[0][0][1].name) == ("w", 1, "x")
    assert tree_util.keystr(path) == "['w'][1][0]"
    assert tree_util.keystr(path, simple=True, separator="/") == "w/1/0"


def test_leaves_may_be_chosen_by_path():
    def at_top(path, node):
        return len(path) == 1

    pairs = tree_util.tree_leaves_with_path(NESTED, at_top, is_leaf_takes_path=True)
    assert [value for _, value in pairs] == [None, Point(3, 4), [1, (2,)]]
    lengths = tree_util.tree_map_with_path(
        lambda path, x: len(path), NESTED, is_leaf=at_top, is_leaf_takes_path=True
    )
    assert lengths == {"n": 1, "p": 1, "w": 1}


def test_registered_classes_have_numbered_children_or_keys():
    @tree_util.register_pytree_node_class
    class Plain:
        def __init__(self, a):
            self.a = a

        def tree_flatten(self):
            return (self.a,), "metadata"

        @classmethod
        def tree_unflatten(cls, metadata, children):
            return cls(*children)

    @tree_util.register_pytree_with_keys_class
    class Keyed(Plain):
        def tree_flatten_with_keys(self):
            return ((GetAttrKey("a"), self.a),), None

    both = [Plain(1.0), Keyed((2.0,))]
    paths = [path for path, _ in tree_util.tree_leaves_with_path(both)]
    assert [tree_util.keystr(path) for path in paths] == [
        "[0][<flat index 0>]",
        "[1].a[0]",
    ]
    assert paths[0][1] == FlattenedIndexKey(0)
    assert paths[0](both) == 1.0
    assert tree_util.tree_map(lambda x: 2 * x, both)[1].a == (4.0,)
    assert tree_util.flatten_one_level(both[0]) == ([1.0], "metadata")
    with pytest.raises(ArgumentError, match="int has no tree_flatten_with_keys"):
        tree_util.register_pytree_with_keys_class(int)


def test_registering_by_functions():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    tree_util.register_pytree_node(
        Pair,
        lambda p: ((p.a, p.b), None),
        lambda _, children: Pair(*children),
        lambda p: (((DictKey("a"), p.a), (DictKey("b"), p.b)), None),
    )
    assert tree.paths(Pair(1, 2)) == ["['a']", "['b']"]
    gradient = af.grad(lambda p: p.a * p.b)(Pair(2.0, 3.0))
    assert (gradient.a, gradient.b) == (3.0, 2.0)


def test_structures_are_taken_apart_and_made():
    structure = tree_util.tree_structure((1, [2, 3]))
    children = tree_util.treedef_children(structure)
    assert tree_util.treedef_tuple(children) == structure
    assert [tree_util.treedef_is_leaf(c) for c in children] == [True, False]
    assert not tree_util.treedef_is_leaf(tree_util.tree_structure(None))


def test_leaves_and_nodes_are_told_apart():
    assert tree_util.all_leaves([1, "a", np.ones(2)])
    assert not tree_util.all_leaves([1, None])
    assert tree_util.all_leaves([(1,)], is_leaf=lambda x: isinstance(x, tuple))
    assert tree_util.is_tree_node(Point)
    assert tree_util.is_tree_node(type(None))
    assert not tree_util.is_tree_node(np.ndarray)
    with pytest.raises(ValueError, match="leaf"):
        tree_util.flatten_one_level(1.0)


def test_associative_reductions_pair_neighbours():
    def joined(x, y):
        return f"({x}{y})"

    letters = {"a": "a", "b": ["b", "c"], "d": ("d", "e")}
    made = tree_util.tree_reduce_associative(joined, letters)
    assert made == "(((ab)(cd))e)"
    assert tree_util.tree_reduce_associative(joined, [], identity="") == ""
    with pytest.raises(TypeError, match="needs an identity"):
        tree_util.tree_reduce_associative(joined, [])
