"""Recognise texts that are clearly not in English, the only language of the judge."""

from __future__ import annotations

import re

# Fewer words do not identify a language of the Latin script
_FEWEST_WORDS = 8
# Different stop words of another language that a text must have, next to fewer of English
_FEWEST_FOREIGN = 3
# The share of letters of the Latin script in an English text with foreign names and formulas
_LATIN_SHARE = 0.5
_LAST_LATIN = "\u024f"
_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    _WORD.findall(
        "the of and to in is was for that it with as on by are be this from at his her has had have not an or but were "
        "which their they can will its who been would when there if more no out so said what up he she you we i may "
        "your do does than then these those into about after also other some should such"
    )
)
# Parts of names such as Álvar Núñez Cabeza de Vaca
_IN_NAMES = frozenset(_WORD.findall("de del la las los le el du des van von der den di da do dos e y al"))
# Frequent words of German, French, Spanish, Italian, Portuguese, Dutch, Swedish, Danish, Polish, Turkish and
# Indonesian, without frequent words of English
_FOREIGN = tuple(
    frozenset(words.split()) - _ENGLISH - _IN_NAMES
    for words in (
        "der die das und ist nicht ein eine mit von den dem zu für auf sich auch wird bei oder einer sind wurde nach",
        "le la les des et est un une du dans pour que qui sur pas avec par au ce sont aux plus il elle ou être",
        "el la los las y es un una del en para que se con por su al como más pero son fue está ha lo",
        "il la lo gli le di è un una del della che per con non sono si nel alla più anche dei delle ha",
        "o os as um uma do da em para que não com por se dos das é ao mais foi na no são pela pelo",
        "de het een en van is dat niet op te zijn met voor ook er maar aan bij wordt door naar werd deze",
        "och att det som en på är av för med den till inte har om ett var jag ett kan sig från eller vid",
        "og at det som en på er af for med den til ikke har om et var jeg kan sig fra eller ved blev",
        "i w na się nie do to jest że z o od po jak ale za przez dla oraz był jego są być",
        "ve bir bu için ile da de olarak olan çok daha en gibi var değil olduğu kadar ancak ya sonra",
        "yang dan di dari untuk dengan pada ini itu tidak adalah dalam akan oleh sebagai juga ke telah bisa",
    )
)


def is_english(text: str) -> bool:
    """Return False if the script or the frequent words of a text belong to another language.

    A short text in the Latin script counts as English, as does one in a language that has no list of words here.

    >>> [is_english(text) for text in ("Bees make honey.", "Пчёлы делают мёд.")]
    [True, False]
    """
    letters = [letter for letter in text if letter.isalpha()]
    if sum(letter <= _LAST_LATIN for letter in letters) < _LATIN_SHARE * len(letters):
        return False
    words = _WORD.findall(text.lower())
    if len(words) < _FEWEST_WORDS:
        return True
    different = frozenset(words)
    foreign = max(len(different & language) for language in _FOREIGN)
    return foreign < _FEWEST_FOREIGN or len(different & _ENGLISH) >= foreign
