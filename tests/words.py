"""Refuses words that were given up: ``python -m tests.words`` lists where they stand.

``tests/words.toml`` has the words, what to write instead, and the rooms in which they
are refused, so that the list is switched on room by room. Names and prose (comments,
docstrings, messages, pages) have a list each.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST_SUBJECT = 72
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``?[^`\n]+`?`")


@dataclass(frozen=True, slots=True)
class Words:
    """``names`` maps parts of identifiers, ``prose`` patterns, to what to write."""

    names: Mapping[str, str]
    prose: Mapping[str, str]
    rooms_of_names: Sequence[str]
    rooms_of_prose: Sequence[str]
    allowed: Mapping[str, Sequence[str]]
    names_in_rooms: Mapping[str, Mapping[str, str]]
    """Further parts of identifiers, refused in one room each."""


def read_words(path: Path = ROOT / "tests" / "words.toml") -> Words:
    """The lists of ``path``."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return Words(
        found["names"],
        found["prose"],
        found["rooms"]["names"],
        found["rooms"]["prose"],
        found["allowed"],
        found["names_in"],
    )


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every identifier in Python ``source``."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def prose_in(source: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of the comments and strings of Python ``source``."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def without_code(page: str) -> str:
    """A page without its code, with as many lines."""
    page = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page)
    return CODE.sub("", page)


def refused_names(
    source: str, names: Mapping[str, str]
) -> Iterator[tuple[int, str, str]]:
    """(line, name, what to write) of each name in ``source`` with a refused part."""
    for line, name in names_in(source):
        for part in PARTS.findall(name):
            if part.lower() in names:
                yield line, name, names[part.lower()]


def refused_prose(
    texts: Iterable[tuple[int, str]], words: Words
) -> Iterator[tuple[int, str, str]]:
    """(line, phrase, what to write) of each refused phrase in ``texts``."""
    for first, text in texts:
        # A phrase may go on in the next line.
        flat = re.sub(
            r"\n[ \t]*(?:# )?", lambda gap: "\n" + " " * (len(gap[0]) - 1), text
        )
        for pattern, instead in words.prose.items():
            spaced = pattern.replace(" ", r"\s+")
            for found in re.finditer(spaced, flat, re.IGNORECASE):
                line = first + flat.count("\n", 0, found.start())
                yield line, " ".join(found[0].split()), instead


def files_of(rooms: Iterable[str]) -> list[Path]:
    """The Python files and pages of ``rooms``, which are files or folders."""
    found: set[Path] = set()
    for room in rooms:
        path = ROOT / room
        if not path.exists():
            raise FileNotFoundError(
                f"tests/words.toml names {room}, which is not there"
            )
        inside = [path] if path.is_file() else path.rglob("*")
        found.update(p for p in inside if p.suffix in (".py", ".md"))
    return sorted(found)


def complaints(words: Words) -> Iterator[str]:
    """One line for each refused word, ``path:line: ...``."""
    rooms = dict.fromkeys(words.rooms_of_names, words.names)
    for room, names in (*rooms.items(), *words.names_in_rooms.items()):
        for path in files_of([room]):
            if path.suffix == ".py":
                found = refused_names(path.read_text(encoding="utf-8"), names)
                yield from shown(path, "name", found, words)
    for path in files_of(words.rooms_of_prose):
        text = path.read_text(encoding="utf-8")
        texts = prose_in(text) if path.suffix == ".py" else [(1, without_code(text))]
        yield from shown(path, "phrase", refused_prose(texts, words), words)


def shown(
    path: Path, kind: str, found: Iterable[tuple[int, str, str]], words: Words
) -> Iterator[str]:
    relative = path.relative_to(ROOT).as_posix()
    allowed = words.allowed.get(relative, ())
    for line, word, instead in dict.fromkeys(found):
        if word not in allowed:
            yield f"{relative}:{line}: {kind} {word!r} was given up: {instead}"


def long_subjects(subjects: Iterable[str]) -> list[str]:
    """The subjects of commits that are too long; merges name branches."""
    return [
        f"commit subject of {len(subject)} characters, {LONGEST_SUBJECT} at most: "
        f"{subject}"
        for subject in subjects
        if len(subject) > LONGEST_SUBJECT and not subject.startswith("Merge ")
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is refused; 1 if anything is."""
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    parser.add_argument(
        "--commits", metavar="RANGE", help="check the subjects of these commits, too"
    )
    chosen = parser.parse_args(arguments)
    found = list(complaints(read_words()))
    if chosen.commits:
        command = ["git", "-C", str(ROOT), "log", "--format=%s", chosen.commits, "--"]
        log = subprocess.run(command, capture_output=True, text=True, check=True)
        found += long_subjects(log.stdout.splitlines())
    print("\n".join(found) or "no word that was given up")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
