"""How far a response looks like a reference, by its words alone: ROUGE, BLEU, METEOR, each by the library of its name.

Baselines of any metric of coverage; Samarinas et al. 2025, methods, section 6.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from untold.udfs.texts import words_of

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
SURFACE = (*ROUGE, "bleu", "meteor")
_WORD = re.compile(r"\w+")


class _NoSynonyms:
    """A WordNet without a word in it: METEOR matches exactly and by stems, and needs no corpus to be downloaded."""

    def synsets(self, word: str) -> list[Any]:
        return []


def surface_scores(response: str, reference: str) -> dict[str, float]:
    """By name of `SURFACE` how alike they are, from 0 to 1, BLEU from 0 to 100.

    ROUGE's F without stemmer (rouge-score; `rougeLsum` takes lines for sentences), BLEU of the one sentence (sacrebleu,
    its defaults), METEOR of case-folded `\\w+` tokens (nltk). A response or a reference without a word is 0.
    """
    if not (_WORD.search(response) and _WORD.search(reference)):
        return dict.fromkeys(SURFACE, 0.0)
    # Here, as together they take a second, which only this needs
    from nltk.translate.meteor_score import single_meteor_score
    from sacrebleu import sentence_bleu

    rouge = _rouge().score(reference, response)
    return {
        **{name: float(rouge[name].fmeasure) for name in ROUGE},
        "bleu": float(sentence_bleu(response, [reference]).score),
        "meteor": float(single_meteor_score(_words(reference), _words(response), wordnet=_NoSynonyms())),
    }


@lru_cache(maxsize=1)
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


def word_overlap(fact: str, response: str) -> float | None:
    """The share of a fact's distinct words (`udfs.texts.words_of`) that stand in the response; None without any.

    >>> word_overlap("The Seine is a river in France.", "A river of Europe is the Seine.")
    0.6666666666666666
    """
    words = words_of(fact)
    return len(words & words_of(response)) / len(words) if words else None


def _words(text: str) -> list[str]:
    """The tokens that METEOR aligns.

    >>> _words("Straße, No. 1")
    ['strasse', 'no', '1']
    """
    return _WORD.findall(text.casefold())
