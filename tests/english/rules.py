"""The constructions that the style guide rejects, as regular expressions with a remedy each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.english.prose import Sentence


@dataclass(frozen=True)
class Rule:
    """A construction to avoid. ``why`` is what the writer is told."""

    name: str
    pattern: re.Pattern[str]
    why: str
    least: int = 1
    questions: bool = False

    def count(self, text: str) -> int:
        if not self.questions and text.rstrip().endswith("?"):
            return 0
        return max(0, len(self.pattern.findall(text)) - self.least + 1)


def _rule(name: str, pattern: str, why: str, least: int = 1, flags: int = re.I, questions: bool = False) -> Rule:
    return Rule(name, re.compile(pattern, flags), why, least, questions)


RULES = [
    _rule(
        "what-phrase",
        r"\b(what|whatever|whoever|whichever|whomever)\b(?! (if|about)\b)|^Who\b",
        "name the thing: 'what a run has' -> 'the tables of a run'",
    ),
    _rule(
        "whether-opener",
        r"^(Whether|How (many|much|often|far|long)|Which|How)\b(?!-| to\b| it works)",
        "start with a verb: 'Return True if ...', 'Count the ...'",
        flags=0,
    ),
    _rule(
        "pro-form",
        r"\bthose (that|which|who|whose|of|with|without|not|in|from|for|on|by|beside|among)\b|\bthat of\b|\bones\b"
        r"|\b(one|another) (that|which|whose)\b"
        r"|\b(none|some|any|all|each|most|several|two|many|part) of (which|whom|it|them|these|those)\b"
        r"|\b(of|by|from|to|in|with) (which|whom|whose)\b|\bof (several|these|those|others)\b",
        "repeat the noun instead of 'those that', 'that of', 'of which', 'of these'",
    ),
    _rule(
        "predicative-of",
        r"\b(is|are|was|were|be) of (?!the (same|form)|course|interest|type|length)\b|\b(is|are|was) (that|those) of\b"
        r"|\bof(?=[.,;:)]|$)",
        "'is of one system' -> 'covers one system'; do not end on 'of'",
    ),
    _rule(
        "fronted",
        r"(^|[.;] )(Of (?!course)|Beside\b|Behind\b|Beyond\b|Within\b|Without\b|By (?!default|using|design|convention|hand)"
        r"(?!\w+ing)|To (?!\w+ (?!\w+s\b))\w+s\b|With (?!this|these|the|a|an)\w+,|Over\b(?! time)|On (each|it|them))",
        "subject first: 'Of a local Spark only X is tried' -> 'For local Spark, the check only tries X'",
        flags=0,
    ),
    _rule(
        "inversion",
        r"(^|[;:,] )(asked|kept|left|shown|given|told|missing|equal|written|wrong|counted|meant|taken|not|so|such) "
        r"(is|are|was|were) (?!not\b)(the|a|an|those|what|all|only|each|rows|requests|samples|of)\b"
        r"|\b(nor|neither) (is|are|was|were|does|do|has|have|can|may)\b|\bthere (lie|stand|come)s?\b",
        "verb after the subject",
    ),
    _rule(
        "is-no",
        r"(?<!there )\b(is|are|was|were|be|of) no (?!longer|need|way|guarantee|effect|more than|such|one\b)\w+"
        r"|\bnone (is|are|has|where|that)\b|\bnothing (that|is|of|to|else|comes|lies|where)\b|\bno more\b|\bany ?more\b",
        "'is no index' -> 'is not an index'; 'no more' -> 'no longer'",
    ),
    _rule(
        "where-for-if",
        r"\bwhere (it|they|there|one|none|that|no|nothing|nobody|those|a|an|some|any|several|neither|what)\b",
        "'null where there is none' -> 'null if there is none'",
    ),
    _rule(
        "house-verb",
        r"\b(gives|says|said|tells?|told|hears?|heard|stands?|stood|lies|lie|speaks?|bears?)\b|\bgoes? (by|on|with|to|away)\b"
        r"|\btakes (what|how|whether|that|it|them|up|all)\b|\bwhat became\b|\bcomes? to\b",
        "returns, reports, contains, accepts, is (instead of gives, says, holds, takes, stands)",
    ),
    _rule(
        "archaic",
        r"\b(beside|anew|whence|thereof|therein|thereby|thrice|lest|shall|hence|likewise|meanwhile|perhaps|oneself"
        r"|mend(s|ed|ing)?|dear(er|est)|errs?|alike|nobody|somebody|bury|buried|hire[ds]?|amid|ere|yonder)\b"
        r"|\bbut for\b|\bas it (is|was|stands|came)\b|\bas they (are|were|stand|come|came)\b|\bwithout end\b"
        r"|\bfor ever\b|\bof (its|their|one's|his) own\b|\bby (itself|themselves)\b",
        "plain modern words: beside -> next to/besides, anew -> again, but for -> except, mend -> fix",
    ),
    _rule(
        "postposed-alone",
        r"\b(\w+s?) alone\b",
        "'by letters alone' -> 'only by letters'",
    ),
    _rule(
        "so-many",
        r"\bso (many|much|long|often|few|far)\b(?! (as|that|to|more)\b)|\bas (many|much|long|often|far) as\b.*\bso\b"
        r"|\b(the|a) first so many\b",
        "name the number: 'the first so many' -> 'the first n'",
    ),
    _rule(
        "else-tail",
        r"[,;] else\b(?! if)|^Else\b|\bor else\b",
        "write 'otherwise', or two sentences",
    ),
    _rule(
        "personified",
        r"\b(it|they|which|that|who|file|manifest|store|run|plan|actor|table|footer|column|row|setting|command|start|process"
        r"|server|endpoint|driver|message|name|page|summary|metric|stage|spark|ray|limiter|worker|index|snapshot|folder)s? "
        r"(also |then |never |only )?(say|tell|told|hear|heard|know|knew|speak|spoke|forget|forgot|remember|learn|want|believe"
        r"|see|saw|bear|pay|dies?|lives?|wish)(s|es|ed)?\b|\b(is|are) (told|heard|asked for)\b|\bhears? of\b",
        "software reports, records, receives, contains; it does not say, tell, hear or know",
    ),
    _rule(
        "relative-chain",
        r"\b(that|which|who|whose|whom|what|whatever|whoever|where|whether)\b",
        "at most two of that/which/who/what/where/whether in a sentence",
        least=3,
    ),
    _rule("joined", r"[;:] (?=\S)", "one idea a sentence: at most one semicolon or colon inside", least=2),
]
RULE_NAMES = [rule.name for rule in RULES]


def findings(sentence: Sentence) -> dict[str, int]:
    """Return the number of matches by rule, without the rules that do not match."""
    counts = {rule.name: rule.count(sentence.text) for rule in RULES}
    return {name: count for name, count in counts.items() if count}
