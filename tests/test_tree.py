"""Pytrees: what is a leaf, in what order, and how it is named."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from arrayfn import tree, tree_util
from arrayfn.compilation.jit import jit
from arrayfn.errors import ArgumentError, DTypeError
from arrayfn.flatten_util import ravel_pytree
from arrayfn.transforms import grad, make_program, vmap


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


# Reductions, paths, transposition.


def test_leaves_are_reduced_in_order():
    assert tree.reduce(lambda x, y: x + y, {"b": "1", "a": ("2", "3")}) == "231"
    assert tree.reduce(lambda x, y: x + y, [], 5) == 5
    assert tree.reduce(lambda x, y: x * y, (2, 3), 10) == 60
    with pytest.raises(TypeError, match="needs an initializer"):
        tree.reduce(lambda x, y: x, {})
    assert tree.all({"a": (1, True)})
    assert not tree.all([1, 0])


def test_what_is_a_leaf_may_be_chosen():
    pair = {"a": (1, 2), "b": [3]}
    assert tree.leaves(pair, is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]
    assert tree.map(len, pair, is_leaf=lambda x: x is not pair) == {"a": 2, "b": 1}


def test_trees_of_trees_turn_inside_out():
    rows = [{"a": 1, "b": (2,)}, {"a": 3, "b": (4,)}]
    outer, inner = tree.structure([0, 0]), tree.structure(rows[0])
    expected = {"a": [1, 3], "b": ([2, 4],)}
    assert tree.transpose(outer, inner, rows) == expected
    assert tree.transpose(outer, None, rows) == expected


def test_paths_lead_to_leaves():
    nested = {"w": [1, Point(2, 3)]}
    pairs, structure = tree.flatten_with_path(nested)
    assert structure == tree.structure(nested)
    assert [tree.keystr(path) for path, _ in pairs] == [
        "['w'][0]",
        "['w'][1].x",
        "['w'][1].y",
    ]
    assert [path(nested) for path, _ in pairs] == [1, 2, 3]
    assert [entry.entry for entry in pairs[0][0]] == ["w", 0]
    assert tree.leaves_with_path(nested) == pairs
    named = tree.map_with_path(lambda p, x, y: (tree.keystr(p), x + y), nested, nested)
    assert named["w"][1].y == ("['w'][1].y", 6)


# Classes of one's own.


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    weights: Any
    bias: Any
    name: Any = dataclasses.field(default="layer", metadata={"static": True})


def test_dataclasses_are_nodes():
    layer = Layer(1.0, {"b": 2.0}, "first")
    assert tree.leaves(layer) == [1.0, 2.0]
    assert tree.paths(layer) == [".weights", ".bias['b']"]
    assert tree.map(lambda x: 2 * x, layer) == Layer(2.0, {"b": 4.0}, "first")
    assert tree.structure(layer) != tree.structure(Layer(1.0, {"b": 2.0}, "second"))
    assert hash(tree.structure(layer)) == hash(tree.structure(layer))
    with pytest.raises(ArgumentError, match="static field 'name' of Layer is a list"):
        tree.leaves(Layer(1.0, 2.0, ["a"]))


def test_dataclasses_go_through_transformations():
    def loss(layer, x):
        scale = 2.0 if layer.name == "double" else 1.0
        return (scale * (x @ layer.weights + layer.bias) ** 2).sum()

    layer = Layer(np.ones((2, 1)), np.zeros(1))
    x = np.array([[1.0, 2.0]])
    for f in (grad(loss), jit(grad(loss))):
        gradient = f(layer, x)
        assert isinstance(gradient, Layer)
        assert gradient.weights.tolist() == [[6.0], [12.0]]
        doubled = f(dataclasses.replace(layer, name="double"), x)
        assert (doubled.bias.tolist(), doubled.name) == ([12.0], "double")
    mapped = vmap(loss, (Layer(0, None), None))(
        Layer(np.ones((3, 2, 1)), np.zeros(1)), x
    )
    assert mapped.tolist() == [9.0] * 3


def test_a_name_in_a_program_is_the_field_s():
    program = make_program(lambda layer: layer.weights * 2)(Layer(1.0, 2.0))
    assert "layer_weights: ~f64[]" in str(program)


def test_fields_may_be_chosen():
    @dataclasses.dataclass
    class Model:
        a: Any
        b: Any
        cache: Any = None

    tree.register_dataclass(Model, ["a"], ["b"], drop_fields=["cache"])
    model = tree.map(lambda x: x + 1, Model(1, 2, cache=3))
    assert (model.a, model.b, model.cache) == (2, 2, None)

    @dataclasses.dataclass
    class Other:
        a: Any
        b: Any

    with pytest.raises(ArgumentError, match="must name each field of Other's"):
        tree.register_dataclass(Other, ["a"], [])
    with pytest.raises(ArgumentError, match="int is not a dataclass; decorate it"):
        tree.register_dataclass(int)


def test_other_classes_are_nodes_by_their_functions():
    class Box:
        def __init__(self, content, label):
            self.content, self.label = content, label

    tree.register_node(
        Box, lambda b: ([b.content], b.label), lambda label, xs: Box(xs[0], label)
    )
    box = tree.map(lambda x: x + 1, Box(1, "l"))
    assert (box.content, box.label) == (2, "l")
    assert grad(lambda b: b.content**2)(Box(3.0, "m")).content == 6.0
    with pytest.raises(ArgumentError, match="has no tree_flatten and tree_unflatten"):
        tree.register_node(dict)


def test_static_classes_are_part_of_the_structure():
    @tree.register_static
    @dataclasses.dataclass(frozen=True)
    class Options:
        power: int

    traced = []

    @jit
    def f(x, options):
        traced.append(options)
        return x**options.power

    assert [f(3.0, Options(k)) for k in (2, 3, 2)] == [9.0, 27.0, 9.0]
    assert traced == [Options(2), Options(3)]


def test_a_dataclass_that_is_not_registered_is_an_error_that_says_so():
    @dataclasses.dataclass
    class Bare:
        x: float

    with pytest.raises(ArgumentError, match=r"Bare .* @tree\.register_dataclass"):
        jit(lambda b: b.x)(Bare(1.0))


def test_a_prefix_becomes_a_tree():
    assert tree.broadcast((1, None), ((0, 0), None)) == ((1, 1), None)
    with pytest.raises(ValueError, match=r"prefix|mismatch|[Ee]xpected"):
        tree.broadcast((1, 2, 3), (0, 0))


def test_a_partial_function_is_an_argument_with_leaves() -> None:
    scaled = tree.Partial(lambda a, x, *, shift: a * x + shift, 2.0, shift=1.0)
    assert jit(lambda f, x: f(x))(scaled, 3.0) == 7.0
    slopes = grad(lambda f: f(3.0))(scaled)
    assert slopes.args == (3.0,)
    assert slopes.keywords == {"shift": 1.0}


@pytest.mark.parametrize("parts", [3, ((1.0,),), (1.0, None), ((1.0,), None, 2)])
def test_what_a_class_is_flattened_to_is_a_pair(parts: Any) -> None:
    class Odd:
        pass

    tree.register_node(Odd, lambda node: parts, lambda metadata, children: Odd())
    for use in (tree.leaves, jit(lambda x: 1.0)):
        with pytest.raises(ArgumentError, match="flatten function of Odd returned"):
            use(Odd())


def test_a_prefix_is_repeated_for_the_leaves_below() -> None:
    assert tree.broadcast_prefix((0, None), ((1, None, 2), 3)) == [0, 0, None]
    assert tree.broadcast_prefix({"a": 0, "b": None}, {"a": None, "b": 1}) == [None]
    with pytest.raises(ValueError, match=r"mismatch|[Ee]xpected"):
        tree.broadcast_prefix((0, 1), (1, 2, 3))


def test_a_partial_keeps_another_one_whole():
    inner = functools.partial(max, 1)
    first, second = tree.Partial(inner, 2), tree.Partial(inner, 2)
    assert first.args == (2,)
    assert tree.leaves(first) == [2]
    assert first.func == inner
    assert tree.structure(first) == tree.structure(second)
    assert first(3) == pickle.loads(pickle.dumps(first))(3) == 3
    assert tree.leaves(tree.Partial(tree.Partial(max, 1), 2)) == [1, 2]


def test_keys_of_different_kinds_have_different_hashes():
    kinds = (tree_util.FlattenedIndexKey(1), tree_util.SequenceKey(1))
    assert len({hash(key) for key in kinds}) == 2


def test_a_static_field_may_be_declared_as_not_static():
    assert tree.static(metadata={"static": False}).metadata == {"static": False}
    assert tree.static(metadata={"a": 1}).metadata == {"static": True, "a": 1}


def test_raveled_trees_are_restored_in_their_dtypes():
    mixed = [np.ones(1, np.float32), np.full(2, 1j, np.complex64)]
    vector, unravel = ravel_pytree(mixed)
    assert vector.dtype == np.complex64
    restored = unravel(vector)
    assert [x.dtype for x in restored] == [np.float32, np.complex64]
    assert restored[1].tolist() == [1j, 1j]
    with pytest.raises(DTypeError, match="a vector of complex64"):
        unravel(vector.real)
    assert ravel_pytree(np.ones(2))[1](np.ones(2, bool)).dtype == np.bool_
