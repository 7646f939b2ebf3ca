"""Names of the symbolic world in other words: aliases, misspellings, and namesakes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from tests.fakes.facts import CITIES, CONTINENTS

FIRST = ("ada", "boris", "clara", "dario", "edith", "felix", "greta", "hugo", "irene", "jonas", "karla", "lars")
LAST = ("mill", "works", "lane", "north", "brook", "stone", "field", "marsh", "wood", "hill", "bridge", "shore")
# Each part of a name in another word, so that an alias has no word in common with its name
_ALIASES = {
    **dict(zip(FIRST, ("elder", "quiet", "merry", "swift", "gentle", "daring"), strict=False)),
    **dict(zip(FIRST[6:], ("wise", "lucky", "noble", "jolly", "humble", "brave"), strict=True)),
    **dict(zip(LAST, ("grinder", "artisan", "walker", "polar", "creek", "rocky"), strict=False)),
    **dict(zip(LAST[6:], ("meadow", "swampy", "timber", "summit", "viaduct", "coastal"), strict=True)),
}
_NAMES = {alias: name for name, alias in _ALIASES.items()}
ROLES = ("swimmer", "painter", "sailor")
_ROLED = re.compile(rf"\bthe ({'|'.join(ROLES)}) (?=\w+ \w+)")
# What may be misspelt: no word of these with a letter doubled is another one
_SPELT = frozenset({*_ALIASES, *_NAMES, *(word.casefold() for word in (*CITIES, *CONTINENTS, *CONTINENTS.values()))})
_WORD = re.compile(r"\w+")
_NO_SIGNS = {ord(sign): None for sign in "\"'`´‘’‚‛′“”„‟″«»*"} | {ord(sign): "-" for sign in "‐‑‒–—―−"}


def alias_of(subject: str) -> str:
    """The other name of a subject; one with a role has none.

    >>> alias_of("ada mill")
    'elder grinder'
    """
    return " ".join(_ALIASES.get(word, word) for word in subject.split())


def namesake_of(subject: str, role: str) -> str:
    """Somebody else of the same name.

    >>> namesake_of("ada mill", "swimmer")
    'the swimmer ada mill'
    """
    return f"the {role} {subject}"


def name_of(word: str) -> str:
    """The word of a name that a word of an alias stands for, case folded; any other word as it is."""
    return _NAMES.get(word, word)


def word_of(word: str) -> str:
    """The word of the world that a word is another form of: that of an alias or a misspelling; any other as it is.

    >>> word_of("grinder"), word_of("lyonn"), word_of("tea")
    ('mill', 'lyon', 'tea')
    """
    spelt = word[:-1] if word[-2:-1] == word[-1:] and word[:-1] in _SPELT else word
    return name_of(spelt)


def misspellings(text: str) -> Iterator[str]:
    """The text with the last letter of one word doubled, for each word that may be misspelt."""
    for found in _WORD.finditer(text):
        if found[0].casefold() in _SPELT:
            yield text[: found.end()] + text[found.end() - 1] + text[found.end() :]


def plain(text: str) -> str:
    """What a text says, however it is written: no quotes and bold type, one kind of dash, names as they are known.

    Case folded, single spaces; a namesake's role belongs to the first part of the name.

    >>> plain("“The Swimmer  Elder Grinder” – owns exactly ３ boats.")
    'swimmer_ada mill - owns exactly 3 boats'
    """
    shown = unicodedata.normalize("NFKC", text.translate(_NO_SIGNS)).casefold()
    words = " ".join(_WORD.sub(lambda found: word_of(found[0]), shown).split())
    return _ROLED.sub(r"\1_", words).rstrip(".;:,!? ")


def is_known_name(text: str) -> bool:
    """Whether a text in its plain form is the name of somebody, with a role or without."""
    words = text.split()
    return len(words) == 2 and words[0].rpartition("_")[2] in FIRST and words[1] in LAST
