"""Normalise texts of any script, and split them into words, tokens and sentences.

Two statements have the same words in any order: a change of meaning usually changes the words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from rapidfuzz.distance import Indel

TESTED_SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Hangul"),
    *("Han", "Hiragana", "Katakana", "Thai"),
)
"""The scripts, by their Unicode names, for which tests cut, count and compare texts."""

# Characters; NFKC takes at most a millisecond for shorter texts
_LONG = 1_000

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁱⁿ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789+-=()in0123456789+-=()")
# Units in one character (NFKC reads `㎡` as `m2`), and fractions with a slash between their parts
_SQUARED = {code: unicodedata.decomposition(chr(code)).split()[1:] for code in range(0x3371, 0x33E0)}
_UNFOLDED = {
    **{code: "".join(chr(int(part, 16)) for part in parts) for code, parts in _SQUARED.items()},
    **dict.fromkeys(map(ord, "⁄∕"), "/"),
    ord("⅟"): "1/",
}
_OFF_LINE = re.compile(
    rf"(?P<over>[⁰¹²³⁴-⁹]+)/(?P<under>[₀-₉]+)|(?P<fraction>[¼-¾⅐-⅞↉])"
    rf"|(?P<raised>[{_RAISED}ʰ-ʸˠ-ˤᴬ-ᵡᶛ-ᶿ]+)|(?P<lowered>[{_LOWERED}]+)"
)
_RAISED_LETTERS = re.compile(r"[ʰ-ʸˠ-ˤᴬ-ᵡᶛ-ᶿ]")
_RAISED_DIGIT = re.compile(r"[⁰¹²³⁴-⁹]")

# The mark that lengthens a vowel of Katakana has no script in Unicode
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""The characters of scripts without spaces between words, for use in brackets of a `regex` pattern."""
# Signs that end a sentence without a following space, except in brackets or a quotation that continues: 「…。」と
_SENTENCE_END = re.compile(r"[。！？｡।॥؟۔።။។]++[”’»」』\"]*+(?!\s*+[)）\]】》〉])(?!(?<=[」』])[ぁ-ゟ])")

# Commands of LaTeX that begin like a written line break
_COMMANDS = "abla|atural|e|earrow|eg|eq|ewcommand|ewline|exists|geq|i|leq|mid|oindent|olimits|onumber|ot|otin|u|warrow"
_BREAK = re.compile(rf"(?<!\\)(?:\\r)?\\n(?!(?:{_COMMANDS})(?![a-z]))")
# A path, or a text within code
_NO_BREAK = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\|\\[^nrt\"'*_-]|[\"`][^\"`]*\\n|\('")
_CELL_END = re.compile(r"(?<!\\)\|")
_STRUCK = re.compile(r"~~(?=\S)[^~\n]{1,2000}(?<=\S)~~[ \t]?")


def compatible(text: str) -> str:
    """Return the NFKC form of a text, but keep superscripts, subscripts and fractions separate from their neighbours.

    >>> compatible("10⁵ of 8½ m²"), compatible("CO₂ in 10₂"), compatible("ﬁrst ８")
    ('10^5 of 8 1/2 m^2', 'CO2 in 10_2', 'first 8')
    """
    if text.isascii():
        return text
    in_line = _OFF_LINE.sub(_in_line, text.translate(_UNFOLDED))
    return unicodedata.normalize("NFKC", _with_ordered_accents(in_line))


def _in_line(found: re.Match[str]) -> str:
    """Return a superscript, a subscript or a fraction as it is typed on one line."""
    text, start, end = found.string, found.start(), found.end()
    before, behind = text[start - 1 : start] if start else "", text[end : end + 1]
    said = found[0].translate(_PLAIN)
    if found["over"] or found["fraction"]:
        said = said if found["over"] else unicodedata.normalize("NFKC", said).replace("⁄", "/")
        said = f" {said}" if before.isnumeric() else said
    elif found["raised"]:
        if _RAISED_LETTERS.search(found[0]) and not _RAISED_DIGIT.search(found[0]):
            return found[0]
        said = f"^{said}"
    elif before.isnumeric():
        said = f"_{said}"
    return f"{said} " if behind.isdecimal() else said


def _with_ordered_accents(text: str) -> str:
    """Return the text with each run of combining characters in canonical order, as NFKC would sort it.

    NFKC's sort is quadratic: 32,000 accents after one letter took 0.7 s, and twice as many four times as long.
    """
    if len(text) < _LONG:
        return text
    runs = groupby(text, key=lambda sign: unicodedata.combining(sign) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if accents else run) for accents, run in runs)


class _Patterns(NamedTuple):
    unspaced: re.Pattern[str]
    word: re.Pattern[str]
    token: re.Pattern[str]
    token_or_apostrophe: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    # Imported here because the import takes 0.1 s, and a command needs it only for texts
    import regex

    # As in the word rules of Unicode (UAX 29), a run of Katakana is one word, and so is each other character. Adjacent
    # signs belong to it
    beside = rf"[^\p{{L}}\p{{N}}\s{UNSPACED}]*+"
    # Like `\w+`, but a vowel sign or an accent does not end a word
    token = r"(?V1)(?:[{0}]\p{{M}}*+)++|[[\p{{L}}\p{{M}}\p{{N}}_{1}]--[{0}]]++"
    return _Patterns(
        regex.compile(rf"[{UNSPACED}]"),
        regex.compile(rf"(?:{beside}(?:[\p{{Katakana}}ー]++|[{UNSPACED}])\p{{M}}*+{beside}|[^\s{UNSPACED}]++)\s*+"),
        regex.compile(token.format(UNSPACED, "")),
        regex.compile(token.format(UNSPACED, "'")),
    )


def _has_unspaced(text: str) -> bool:
    return not text.isascii() and _patterns().unspaced.search(text) is not None


def split_words(text: str) -> list[str]:
    """Return the words of a text, each with the space after it. Joined, they are the text with single spaces.

    Words are separated by white space. In scripts without spaces, each character is a word.

    >>> split_words("Berlin  是首都。 It is."), split_words("タワー")
    (['Berlin ', '是', '首', '都。 ', 'It ', 'is.'], ['タワー'])
    """
    plain = " ".join(text.split())
    return _patterns().word.findall(plain) if _has_unspaced(plain) else re.findall(r"\S+ ?", plain)


def count_words(text: str) -> int:
    """Return the number of words that `split_words` returns."""
    return len(split_words(text) if _has_unspaced(text) else text.split())


def tokens_in(folded: str, *, apostrophes: bool = False) -> list[str]:
    """Return the tokens of a compatible, case folded text: runs of letters, digits and `_`.

    In scripts without spaces, each pair of neighbouring characters is a token, so that texts have comparable numbers of
    tokens.

    >>> tokens_in("the 2 towers"), tokens_in("東京は"), tokens_in("दिल्ली")
    (['the', '2', 'towers'], ['東京', '京は'], ['दिल्ली'])
    """
    patterns = _patterns()
    runs: list[str] = (patterns.token_or_apostrophe if apostrophes else patterns.token).findall(folded)
    return [token for run in runs for token in _neighbours(run)] if _has_unspaced(folded) else runs


def _neighbours(run: str) -> Iterable[str]:
    """Return the pairs of neighbours of a run in a script without spaces, or any other run unchanged."""
    return map("".join, pairwise(run)) if len(run) > 1 and _has_unspaced(run[0]) else (run,)


def sentence_ends(text: str) -> Iterator[int]:
    """Yield the positions after the signs that end sentences in scripts other than Latin.

    >>> list(sentence_ends("你好。是吗？Yes. 對！"))
    [3, 6, 13]
    """
    return (found.end() for found in _SENTENCE_END.finditer(text))


def with_breaks(text: str) -> str:
    r"""Return the text with line breaks in place of a written `\n`, except in paths, code and commands of LaTeX.

    >>> with_breaks(r"- a\n- b"), with_breaks(r"C:\new"), with_breaks(r"\nabla f")
    ('- a\n- b', 'C:\\new', '\\nabla f')
    """
    if "\\n" not in text:
        return text
    parts = re.split(r"(\s+)", text)
    return "".join(part if _NO_BREAK.search(part) else _BREAK.sub("\n", part) for part in parts)


def without_struck(text: str) -> str:
    """Return the text without the parts that are struck out.

    >>> without_struck("~~Madrid~~ Lisbon"), without_struck("~5 to ~10 km")
    ('Lisbon', '~5 to ~10 km')
    """
    return _STRUCK.sub("", text) if "~~" in text else text


_DIGIT = re.compile(r"\d")
# Least similarity of two forms of one word: `benefit` and `benefits` have .93, `sleepiness` and `insomnia` .33
SAME_WORD = 0.8

_ARTICLES = "a an the"
_VERBS = "be am is are was were been being have has had having do does did doing done"
_MODALS = "can could may might must shall should will would ought"
# Only one of two opposites, such as `with` and `without`, `to` and `from`, `in` and `out`: with the other word, a
# statement has another meaning
_PREPOSITIONS = (
    "about across along amid amidst among amongst around as at by concerning during for in inside into of on onto per "
    "regarding through throughout to toward towards upon via with within"
)
FUNCTION_WORDS = frozenset(" ".join((_ARTICLES, _VERBS, _MODALS, _PREPOSITIONS)).split())
"""The words in which statements with the same meaning may differ. They include no negation and no number."""


@lru_cache(maxsize=20_000)
def words_of(text: str) -> frozenset[str]:
    """Return the words of a text, compatible and case folded, without `FUNCTION_WORDS`.

    >>> sorted(words_of("The Seine is a river in France."))
    ['france', 'river', 'seine']
    """
    return frozenset(tokens_in(compatible(text).casefold(), apostrophes=True)) - FUNCTION_WORDS


def say_same_words(first: str, second: str) -> bool:
    """Return True if two statements have the same words.

    The words that only one statement has must form pairs of nearly equal words (Indel similarity of at least
    `SAME_WORD`), and none may have a digit.

    >>> say_same_words("The benefit occurs in weeks", "Benefits will occur within weeks")
    True
    >>> say_same_words("It was founded in 1912", "It was founded in 1913")
    False
    """
    one, other = words_of(first), words_of(second)
    return one == other or _pair_off(sorted(one - other), sorted(other - one))


def _pair_off(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return True if there is a one-to-one matching of nearly equal words."""
    if len(first) != len(second) or any(map(_DIGIT.search, (*first, *second))):
        return False
    alike = [[Indel.normalized_similarity(one, other) >= SAME_WORD for other in second] for one in first]
    # Most pairs have a word without a similar word, which needs no matching
    if not all(map(any, alike)):
        return False
    # Imported here because commands that only show templates import this module, and SciPy takes a second
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    matched = maximum_bipartite_matching(csr_array(np.array(alike)), perm_type="column")
    return bool((matched >= 0).all())


# Full-width forms included; the apostrophes make guarding reversible
FORMULA = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def table_cells(row: str) -> list[str]:
    r"""Return the cells of a row of a Markdown table.

    >>> table_cells(r"| a | b \| c |")
    [' a ', ' b | c ']
    """
    cells = _CELL_END.split(row.strip().removeprefix("|"))
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [cell.replace("\\|", "|") for cell in cells]


def escape_formula(text: str) -> str:
    """Return the text, with an apostrophe before it if a spreadsheet would read it as a formula.

    >>> escape_formula("=1+1"), escape_formula("'=1+1"), escape_formula("plain")
    ("'=1+1", "''=1+1", 'plain')
    """
    return f"'{text}" if FORMULA.match(text) else text


def unguard(text: str) -> str:
    """Return the original text of `escape_formula`.

    >>> unguard(escape_formula("=1+1")), unguard("'quoted'")
    ('=1+1', "'quoted'")
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text
