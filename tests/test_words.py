"""The check of words that were given up."""

from __future__ import annotations

from tests.words import (
    Words,
    complaints,
    files_of,
    long_subjects,
    prose_in,
    read_words,
    refused_names,
    refused_prose,
    without_code,
)

WORDS = Words(
    names={"turn": "iteration"},
    prose={r"\bby turns\b": "alternately"},
    rooms_of_names=["tests/words.py"],
    rooms_of_prose=[],
    allowed={},
    names_in_rooms={},
)
SOURCE = '''
def run(turns, turn_of):  # they run by turns
    """Runs by
    turns."""
    return Turn(turns) + return_value
'''


def test_no_word_that_was_given_up_is_in_a_clean_room():
    assert list(complaints(read_words())) == []


def test_a_part_of_a_name_is_refused_and_a_longer_word_is_not():
    found = list(refused_names(SOURCE, WORDS.names))
    assert found == [(2, "turn_of", "iteration"), (5, "Turn", "iteration")]


def test_a_phrase_is_found_in_comments_and_across_the_lines_of_a_docstring():
    found = list(refused_prose(prose_in(SOURCE), WORDS))
    assert found == [(2, "by turns", "alternately"), (3, "by turns", "alternately")]


def test_code_of_a_page_is_not_prose_and_lines_keep_their_numbers():
    page = "one `by turns`\n```text\nby turns\n```\nby turns\n"
    found = list(refused_prose([(1, without_code(page))], WORDS))
    assert found == [(5, "by turns", "alternately")]


def test_what_a_file_is_allowed_is_not_refused():
    words = Words({"return": "x"}, {}, ["tests/words.py"], [], {}, {})
    (first, *_) = complaints(words)
    assert first.endswith("name 'return' was given up: x")
    allowed = {"tests/words.py": ["return"]}
    words = Words({"return": "x"}, {}, ["tests/words.py"], [], allowed, {})
    assert list(complaints(words)) == []


def test_a_room_may_refuse_further_names():
    names = {"tests/words.py": {"return": "x"}}
    (first, *_) = complaints(Words({}, {}, [], [], {}, names))
    assert first.endswith("name 'return' was given up: x")


def test_long_subjects_of_commits_are_refused_but_not_of_merges():
    short, long = "Add a page", "Add " + "a" * 70
    assert long_subjects([short, "Merge " + long]) == []
    assert long_subjects([long]) == [
        f"commit subject of 74 characters, 72 at most: {long}"
    ]


def test_rooms_are_files_or_folders():
    assert [path.name for path in files_of(["README.md"])] == ["README.md"]
    assert len(files_of(["arrayfn/passes"])) > 10
