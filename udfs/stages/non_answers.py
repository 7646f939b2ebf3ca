"""Recognise completions without an answer: empty lists, refusals, and items copied from the prompt's examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from untold.udfs.ratings import leaves

NONE_WORDS = frozenset(
    {
        *("none", "keine", "keiner", "keines", "nichts", "geen", "ingen", "inga", "brak", "žádné", "yok", "hiçbiri"),
        *("aucun", "aucune", "rien", "néant", "ninguno", "ninguna", "nada", "nessuno", "nessuna", "niente"),
        *("nenhum", "nenhuma", "нет", "ничего", "немає", "无", "無", "没有", "沒有", "なし", "無し", "ありません"),
        *("없음", "없습니다", "해당 없음", "لا شيء", "لا يوجد", "कोई नहीं", "कुछ नहीं"),
    }
)
UNKNOWN_WORDS = (
    "unknown|none|n\\s?/\\s?a|unbekannt|inconnue?|desconocid[oa]|desconhecid[oa]|sconosciut[oa]|onbekend|okänt|ukjent"
    "|nieznan[eya]|неизвестно|невідомо|bilinmiyor|未知|不明|不详|不詳|알 수 없음|غير معروف|अज्ञात"
)

_SOURCE = r"(?:the|this) (?:(?:given|provided|source) )?(?:text|passage|context|source|document)"
# A sentence that reports no content: in English by its grammar, in other languages by a source and a negation
_ABSENT = re.compile(
    r"[\W_]{0,9}(?:"
    rf"{_SOURCE} (?:(?:does not|doesn['’]t|do not) (?:\w+ )?(?:contain|say|mention|provide|give|state|include)"
    r"|(?:contains?|provides?|has|gives|says|states|makes) (?:no|nothing)\b)[^.\n]{0,120}"
    rf"|(?:there (?:is|are) )?(?:no|nothing)(?: \w+){{0,6}} (?:in|of|within|from) {_SOURCE}[^.\n]{{0,120}}"
    r"|i (?:could not|couldn['’]t|cannot|can['’]t|did not|(?:was|am) unable to)"
    r" (?:find|identify|see|locate|extract) any(?:thing)?\b[^.\n]{0,120}"
    r"|(?:there (?:is|['’]s) |there['’]s )?nothing relevant\b[^.\n]{0,60}"
    r"|none of (?:this|the|these|its)(?: sentences?| statements?| information| content)?[^.\n]{0,60}(?:relevan|bears"
    r"|relates)[^.\n]{0,80}"
    r"|(?:there (?:is|are) )?no relevant (?:information|content|sentences?|text|facts?|data)\b[^.\n]{0,120}"
    r"|(?:there (?:is|are) )?no (?:\w+ ){0,2}(?:claims?|facts?|statements?|assertions?|questions?|topics?|units?)"
    r"(?: (?:found|here|to (?:extract|list)))?"
    r"|(?=[^.。\n]{0,160}(?:\btexto?\b|\btexte\b|\btesto\b|\btekst|\bcontext|\bkontext|\bcontesto|\binformati|\binformaç"
    r"|\binformación|\bangaben\b|\bfakten|\baussagen|\bpasaje|текст|информаци|informacji|文本|文章|文中|原文|上下文|信息|内容"
    r"|テキスト|本文|情報|記載|본문|텍스트|정보|언급|معلومات))"
    r"(?=[^.。\n]{0,160}(?:\bkeine|\bnichts?\b|\bne\b|\bn['’]|\baucune|\bno\b|\bninguna|\bnon\b|\bnessuna"
    r"|\bnão\b|\bnenhuma|\bgeen\b|\bniet|\bnie\b|\bbrak\b|\bнет\b|\bне\b|没有|未|不|无|ません|ない|なし|없|않|لا ))"
    r"(?!(?:the|this|there|it|in|no|a|i)\b)[^.。\n]{1,200}"
    r"|n(?:icht|on|ão|o|iet) (?:se )?(?:erwähnt|genannt|angegeben|bekannt|mentionn|précis|spécifi|indiqu|menciona"
    r"|especifica|indica|specificat|menzionat|vermeld)\w{0,5}|не (?:указано|упоминается|известно|упомянуто)"
    r"|未(?:提及|提到|说明|给出))[.。\W_]{0,9}",
    re.IGNORECASE,
)
# A word that limits the negation
_YET = re.compile(
    r"\b(?:but|although|though|however|beyond|except|apart|other than|only|aber|jedoch|mais|pero|però|mas)\b|но |但"
    r"|しかし",
    re.IGNORECASE,
)
_LONGEST_ABSENCE = 300  # characters

_TASKS = (
    r"(?:help|assist|comply|fulfill?|provide|continue|process|complete|engage|support|summari[sz]e|extract|evaluate"
    r"|rate|classify|judge|label|verify|compar(?:e|ing)|restate|rewrite|rephrase|discuss|create|generate|perform"
    r"|extracting|interpret|proceed|explain|take part|produce"
    r"|giv(?:e|ing) (?:\w+ )?(?:guidance|advice|assessments?|opinions?)"
    r"|participate|analy[sz]e|do (?:that|this)|(?:answer|respond|reply)(?: to)?(?: (?:this|that|your|the))?(?: \w+)?"
    r" (?:request|prompt|question|query))\b(?! (?:\w+ ){1,3}as\b)"
)
_UNABLE = (
    r"(?:can['’]t|cannot|can not|won['’]t|will not|could not|couldn['’]t|decline to|refuse to"
    r"|(?:would|['’]d) rather not|prefer not to|do(?:n['’]t| not) feel (?:able to|comfortable)"
    r"|(?:must|have to|need to) decline(?: to)?"
    r"|(?:am|['’]m|are|['’]re|is) (?:\w+ )?(?:unable|not (?:able|comfortable|permitted|allowed))(?: to)?)"
)
_CANNOT = (
    r"kann ich\b|darf ich\b|ich kann\b|ich darf\b|\bne (?:peux|pouvons|suis|sommes)\b"
    r"|\bno (?:puedo|podemos)\b|\bnon (?:posso|possiamo)\b|\bnão (?:posso|consigo|podemos)\b|\bkan ik\b"
    r"|\bik kan\b|\bnie (?:mogę|jestem|potrafię)\b|\bне (?:могу|можем)\b|\bnem(?:ohu|ůžu)\b|nemôžem"
    r"|\bkan (?:tyvärr |desværre |dessverre |jag |jeg |ikke |inte )|无法|無法|不能|لا (?:أستطيع|يمكنني)|\byardım"
    "|お応え|お手伝い|죄송|申し訳|मुझे खेद|क्षमा"
)
_HELP = (
    "helfen|bearbeiten|unterstützen|erfüllen|nachkommen|behilflich|zusammenfassen|aider|assister|traiter"
    "|fournir|accéder|demande|ayudar|asistir|proporcionar|procesar|cumplir|resumir|aiutar|elaborare"
    "|soddisfare|richiesta|ajudar|auxiliar|processar|atender|helpen|verwerken|voldoen|pomóc|spełnić"
    "|помочь|выполнить|помогать|запрос|pomoc|pomôcť|hjälpa|hj[æe]lpe|帮|協助|协助|处理|處理|提供|完成|满足|回应|回應|继续|执行"
    "|讨论|المساعدة|مساعدت|olamam|edemem|できません|できかねます|かねます|수 없|어렵습니다|नहीं"
)
_REFUSES = re.compile(
    r"[\s\"'“*_>`]{0,9}(?:\{\s{0,9}\"(?:error|refusal|message|response|answer|reason)\"\s{0,3}:\s{0,3}\")?(?P<said>"
    # In English: `I'm sorry, but I can't help`, `As an AI, I do not ...`, `The request was blocked`
    r"(?:(?:(?:i['’]m|i am|we['’]re|we are|so)? ?(?:really |very |so )?(?:sorry|afraid)|unfortunately|i apologi[sz]e"
    r"|(?:my )?apologies|as an? (?:ai|large language|language)\b)[^.\n]{0,60}?)?(?:but |that )?"
    rf"(?:i|we|the assistant|this model) ?{_UNABLE} (?:\w+ )?{_TASKS}"
    r"|as an? (?:ai|artificial|large language|language)\b[^.\n]{0,80}?,? i(?:['’]m| am| do| can|['’]ve)?(?: ?not|n['’]t"
    r"| unable)\b"
    r"|(?:i['’]m |i am )?sorry[^.\n\w]{0,4}(?:but )?(?:i|we) (?:can['’]t|cannot)[.!\s]"
    r"|(?:i|we) (?:must|have to|need to) (?:respectfully )?(?:decline|refuse)\b"
    r"|(?:this|the|your|that) (?:\w+ )?(?:content|request|prompt|input|message|query|material|conversation|text"
    r"|response)\b[^.\n]{0,140}\b(?:violat\w*|block\w*|flagg\w*|filter\w*|prohibit\w*|harmful|unsafe"
    r"|polic(?:y|ies)|guidelines|inappropriate|high risk|terms of (?:use|service))"
    r"|(?:content|usage|safety) (?:policy|filter|guidelines)[^.\n]{0,40}(?:violat\w+|triggered|block\w+)"
    r"|(?:request|response|content|prompt) (?:blocked|denied|rejected|refused|filtered|flagged)\b"
    # In other languages: an apology and a negation, or `cannot` and a word of help in the first sentence
    r"|[^\n]{0,9}(?:tut mir leid|抱歉|对不起|죄송)[^。\n]{0,60}(?:\bnicht\b|无法|不能|없습니다)"
    rf"|[^.。\n]{{0,60}}?(?:{_CANNOT})[^.。\n]{{0,80}}(?:{_HELP}))",
    re.IGNORECASE,
)
# A sentence that lacks information is not a refusal, nor is a list
_IS_ANSWER = re.compile(
    r"\b(?:no|any|enough|sufficient|keine|aucune|ninguna|nessuna|nenhuma) (?:\w+ ){0,2}(?:info|detail|data|angab)"
    r"|relevant|pertinent|\bbased on\b|\b(?:does|do)(?: not|n['’]t) (?:contain|mention|say|provide)"
    r"|\b(?:contains|provides) no\b|根据|基づ"
    r"|^[ \t]{0,9}(?:[-*•+][ \t]|\d{1,3}[.)][ \t]|\{(?!\s{0,9}\"(?-i:error|refusal|message)\")|\[)",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST_REFUSAL = 800  # characters


# A question back to the user, or a pointer to a text that is not there
_NO_CONTENT = re.compile(
    r"\bplease (?:paste|provide|share|send|tell me|give me)\b"
    r"|\b(?:which|what)\b[^.?\n]{0,40} do you (?:mean|want|need)\b"
    r"|\b(?:could|can) you (?:please )?(?:clarify|provide|share|paste|send|tell me)\b"
    r"|\bsee (?:the )?(?:\w+ )?above\W*\Z",
    re.IGNORECASE,
)
_LONGEST_POINTER = 200  # characters


def has_no_content(text: str) -> bool:
    """Return True if a short text asks the user for something, or points to a text above.

    >>> has_no_content("Please paste the text."), has_no_content("The text is old.")
    (True, False)
    """
    return len(text) <= _LONGEST_POINTER and _NO_CONTENT.search(text) is not None


def says_absent(text: str) -> bool:
    """Return True if a text is one sentence that reports that its source has no content.

    >>> says_absent("There is no relevant information in the text."), says_absent("Nothing in life is free.")
    (True, False)
    """
    short = len(text) <= _LONGEST_ABSENCE and not _YET.search(text)
    return short and _ABSENT.fullmatch(text.strip()) is not None


def is_refusal(answer: str, own: Iterable[str]) -> bool:
    """Return True if an answer declines the task and does not repeat one of the `own` texts.

    >>> is_refusal("I'm sorry, but I can't help with that.", []), is_refusal("I cannot tell whether it is safe.", [])
    (True, False)
    """
    text = answer.strip()
    found = _REFUSES.match(text) if len(text) <= _LONGEST_REFUSAL else None
    if found is None or _IS_ANSWER.search(text):
        return False
    return not any(_plain(found["said"]) in _plain(each) for each in own)


def _plain(text: str) -> str:
    return " ".join(text.replace("’", "'").split()).casefold()


# The invented names in the examples of a template
_NAMES = re.compile(r"\{#-?\s*names:(?P<names>[^#]*?)-?#\}")


def example_names(template: str) -> tuple[str, ...]:
    """Return the names in the examples of a template from its comment. Return no names without a comment.

    >>> example_names("{# names: Ada Fenn, Osk #}\\n=== user\\n{{ text }}")
    ('Ada Fenn', 'Osk')
    """
    found = _NAMES.search(template)
    return tuple(name.strip() for name in found["names"].split(",") if name.strip()) if found else ()


def leaked_names(text: str, variables: Mapping[str, Any], names: tuple[str, ...]) -> set[str]:
    """Return the names of the examples in a text that no input has, in lower case.

    >>> leaked_names("Osk is old.", {"text": "Lyon is old"}, ("Osk",))
    {'osk'}
    """
    found = {name.casefold() for name in _pattern(names).findall(text)} if names else set()
    if not found:
        return found
    said = "\n".join(texts_of(variables.values())).casefold()
    return {name for name in found if name not in said}


def without_leaked(
    output: Mapping[str, Any], items: Sequence[str], variables: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Mapping[str, Any], int]:
    """Return the output without items that contain a name of the examples, and the number of removed items.

    items: the parallel lists of the output. The first one has texts, or mappings that contain texts. variables: the
    inputs; names in these are not removed.

    >>> without_leaked({"facts": ["Osk is old.", "Lyon is old."]}, ["facts"], {"text": "Lyon is old"}, ("Osk",))
    ({'facts': ['Lyon is old.']}, 1)
    """
    if not items or not names:
        return output, 0
    said = ["\n".join(texts_of([item])) for item in output[items[0]]]
    kept = [place for place, text in enumerate(said) if not leaked_names(text, variables, names)]
    leaked = len(output[items[0]]) - len(kept)
    if not leaked:
        return output, 0
    return {**output, **{name: [output[name][place] for place in kept] for name in items}}, leaked


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")


def texts_of(values: Iterable[Any]) -> Iterator[str]:
    """Yield all texts, also the texts in lists and mappings."""
    return (leaf for value in values for leaf in leaves(value) if isinstance(leaf, str))
