"""``@frozen`` and ``@record`` beside the dataclasses of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from arrayfn.records import frozen, record


@frozen
class Pair:
    """Two fields, a list that is made anew, and what nothing compares."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)

    @cached_property
    def total(self) -> int:
        """The sum, which is kept in the object's dictionary."""
        return self.x + self.y


@dataclass(frozen=True)
class StandardPair:
    """``Pair`` as the standard library defines it."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)


@frozen(slots=True)
class Slotted:
    """Fields that are slots."""

    x: int
    y: Any = None


@frozen
class Checked(Pair):
    """A subclass with a keyword, which checks what it is given."""

    _: KW_ONLY
    limit: int = 5

    def __post_init__(self) -> None:
        """Refuse ``x`` above the limit."""
        if self.x > self.limit:
            raise ValueError(f"{self.x} is above {self.limit}")


@frozen(slots=True, repr=False)
class Written:  # noqa: PLW1641 - the test is about its hash
    """A class that has its own ``__init__`` and ``__eq__``."""

    x: int

    def __init__(self, text: str) -> None:
        """Set ``x`` to the number in ``text``."""
        object.__setattr__(self, "x", int(text))

    @override
    def __eq__(self, other: object) -> bool:
        """Whether the last digits are equal."""
        return isinstance(other, Written) and self.x % 10 == other.x % 10


@frozen(eq=False)
class Single:
    """Equal only to itself."""

    x: int


@record
class Count:
    """A total that can be set, and what follows from it."""

    total: int
    parts: list[int] = field(default_factory=list)
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        """Set ``doubled``."""
        self.doubled = 2 * self.total


def test_text_and_order_of_fields_are_those_of_a_dataclass() -> None:
    have, want = Pair(1, note="n"), StandardPair(1, note="n")
    assert repr(have) == repr(want).removeprefix("Standard")
    assert dataclasses.asdict(have) == dataclasses.asdict(want)
    have_names = list(inspect.signature(Pair).parameters)
    assert have_names == list(inspect.signature(StandardPair).parameters)
    assert Pair.__match_args__ == StandardPair.__match_args__


def test_objects_are_compared_and_hashed_by_their_fields() -> None:
    assert Pair(1, note="a") == Pair(1, 2, [], "b")
    assert Pair(1) != Pair(2)
    assert Pair(1) != StandardPair(1)
    assert Slotted(1, "b") == Slotted(1, "b")
    assert len({Slotted(1), Slotted(1), Slotted(2)}) == 2
    nan = np.array([np.nan])  # its comparison with itself has no truth value
    assert Slotted(1, nan) == Slotted(1, nan)
    assert Single(1) != Single(1)
    assert len({Single(1), Single(1)}) == 2


def test_each_object_has_its_own_default() -> None:
    one, other = Pair(1), Pair(1)
    one.names.append("a")
    assert other.names == []


@pytest.mark.parametrize("made", [Pair(1), Slotted(1), Checked(1), Single(1)])
def test_fields_cannot_be_set_or_deleted(made: Any) -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        made.x = 3
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del made.x
    assert made.x == 1
    if not isinstance(made, Slotted):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'other'"):
            made.other = 3


def test_a_plain_subclass_may_have_further_attributes() -> None:
    class Labelled(Pair):
        """Has a label, which is no field."""

    made = Labelled(1)
    made.label = "a"  # type: ignore[attr-defined]
    assert vars(made)["label"] == "a"
    with pytest.raises(FrozenInstanceError):
        made.x = 2  # type: ignore[misc]


def test_cached_properties_work() -> None:
    made = Pair(1)
    assert (made.total, made.total, vars(made)["total"]) == (3, 3, 3)


@pytest.mark.parametrize("made", [Pair(1, 3), Slotted(1, (2,)), Checked(1, limit=9)])
def test_objects_are_copied_pickled_and_replaced(made: Any) -> None:
    assert copy.copy(made) == made
    assert copy.deepcopy(made) == made
    assert pickle.loads(pickle.dumps(made)) == made
    changed = dataclasses.replace(made, y=7)
    assert (changed.x, changed.y, type(changed)) == (1, 7, type(made))


def test_post_init_keywords_and_inherited_fields() -> None:
    assert Checked(4, 1, limit=4) == Checked(4, 1, [], limit=4)
    with pytest.raises(ValueError, match="6 is above 5"):
        Checked(6)
    with pytest.raises(TypeError, match="takes from 2 to 5 positional arguments"):
        Checked(1, 2, [], "", 3)  # type: ignore[misc]


def test_wrong_arguments_are_named() -> None:
    message = r"Slotted.__init__\(\) missing 1 required positional argument: 'x'"
    with pytest.raises(TypeError, match=message):
        Slotted()  # type: ignore[call-arg]


def test_methods_of_the_class_are_kept() -> None:
    assert Written("12") == Written("2")
    assert hash(Written("12")) == hash((12,))
    assert repr(Written("12")).startswith("<")
    with pytest.raises(TypeError, match="Mutable defines __setattr__"):

        @frozen
        class Mutable:  # pyright: ignore[reportUnusedClass]
            """Sets attributes, although it is frozen."""

            x: int

            @override
            def __setattr__(self, name: str, value: Any) -> None:
                """Do nothing."""


def test_records_can_be_set_and_equal_only_themselves() -> None:
    made = Count(2)
    made.total += 1
    assert repr(made) == "Count(total=3, parts=[], doubled=4)"
    assert made != Count(3)
    assert len({made, made, Count(3)}) == 2


def test_an_object_that_contains_itself_is_printed() -> None:
    made = Pair(1)
    made.names.append(made)  # type: ignore[arg-type]
    assert repr(made) == "Pair(x=1, y=2, names=[...])"
