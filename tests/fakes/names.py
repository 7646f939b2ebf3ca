"""Other forms of the names in the symbolic world: aliases, misspellings, and namesakes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tests.fakes.facts import CITIES, CONTINENTS

FIRST = ("ada", "boris", "clara", "dario", "edith", "felix", "greta", "hugo", "irene", "jonas", "karla", "lars")
LAST = ("mill", "works", "lane", "north", "brook", "stone", "field", "marsh", "wood", "hill", "bridge", "shore")
# Another word for each part of a name, so that an alias and its name have no common word
_ALIASES = {
    **dict(zip(FIRST, ("elder", "quiet", "merry", "swift", "gentle", "daring"), strict=False)),
    **dict(zip(FIRST[6:], ("wise", "lucky", "noble", "jolly", "humble", "brave"), strict=True)),
    **dict(zip(LAST, ("grinder", "artisan", "walker", "polar", "creek", "rocky"), strict=False)),
    **dict(zip(LAST[6:], ("meadow", "swampy", "timber", "summit", "viaduct", "coastal"), strict=True)),
}
_NAMES = {alias: name for name, alias in _ALIASES.items()}
ROLES = ("swimmer", "painter", "sailor")
_ROLED = re.compile(rf"\bthe ({'|'.join(ROLES)}) (?=\w+ \w+)")
# The words that may be misspelt. No such word with a doubled letter is another word
_SPELT = frozenset({*_ALIASES, *_NAMES, *(word.casefold() for word in (*CITIES, *CONTINENTS, *CONTINENTS.values()))})
_WORD = re.compile(r"\w+")
_NO_SIGNS = {ord(sign): None for sign in "\"'`´‘’‚‛′“”„‟″«»*"} | {ord(sign): "-" for sign in "‐‑‒–—―−"}


def alias_of(subject: str) -> str:
    """Return the other name of a subject. A name with a role has no alias.

    >>> alias_of("ada mill")
    'elder grinder'
    """
    return " ".join(_ALIASES.get(word, word) for word in subject.split())


def namesake_of(subject: str, role: str) -> str:
    """Return another person with the same name.

    >>> namesake_of("ada mill", "swimmer")
    'the swimmer ada mill'
    """
    return f"the {role} {subject}"


def name_of(word: str) -> str:
    """Return the word of the name for a word of an alias, case folded, or any other word unchanged."""
    return _NAMES.get(word, word)


def word_of(word: str) -> str:
    """Return the normal form of a word of an alias or a misspelt word, or any other word unchanged.

    >>> word_of("grinder"), word_of("lyonn"), word_of("tea")
    ('mill', 'lyon', 'tea')
    """
    spelt = word[:-1] if word[-2:-1] == word[-1:] and word[:-1] in _SPELT else word
    return name_of(spelt)


def misspellings(text: str) -> Iterator[str]:
    """Yield the text with a doubled last letter in one word, for each word that may be misspelt."""
    for found in _WORD.finditer(text):
        if found[0].casefold() in _SPELT:
            yield text[: found.end()] + text[found.end() - 1] + text[found.end() :]


def plain(text: str) -> str:
    """Return the normal form of a text: no quotes and bold type, one kind of dash, known names.

    The text is case folded, with single spaces. A namesake's role belongs to the first part of the name.

    >>> plain("“The Swimmer  Elder Grinder” – owns exactly ３ boats.")
    'swimmer_ada mill - owns exactly 3 boats'
    """
    shown = unicodedata.normalize("NFKC", text.translate(_NO_SIGNS)).casefold()
    words = " ".join(_WORD.sub(lambda found: word_of(found[0]), shown).split())
    return _ROLED.sub(r"\1_", words).rstrip(".;:,!? ")


def is_known_name(text: str) -> bool:
    """Return True if a text in its normal form is a name, with or without a role."""
    words = text.split()
    return len(words) == 2 and words[0].rpartition("_")[2] in FIRST and words[1] in LAST
