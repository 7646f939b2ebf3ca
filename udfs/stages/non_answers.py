"""Recognise completions without an answer: empty lists, refusals, and items copied from the prompt's examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

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

_ENGLISH_SOURCE = r"(?:the|this) (?:(?:given|provided|source) )?(?:text|passage|context|source|document)"
# That a source says nothing, as a whole sentence
_NOT_IN_SOURCE = "|".join(
    (
        rf"{_ENGLISH_SOURCE} (?:(?:does not|doesn['’]t|do not) (?:\w+ )?(?:contain|say|mention|provide|give|state"
        rf"|include)"
        r"|(?:contains?|provides?|has|gives|says|states|makes) (?:no|nothing)\b)[^.\n]{0,120}",
        r"(?:there (?:is|are) )?(?:no|nothing)(?: \w+){0,6} (?:in|within|from) " + _ENGLISH_SOURCE + r"[^.\n]{0,80}",
        r"i (?:could not|couldn['’]t|cannot|can['’]t|did not|(?:was|am) unable to) (?:find|identify|see|locate"
        r"|extract) any"
        r"(?:thing)?\b[^.\n]{0,120}",
        r"(?:there (?:is|['’]s)|there['’]s) nothing relevant\b[^.\n]{0,60}|none of this (?:bears|relates"
        r"|is relevant)[^.\n]{0,60}",
        r"нет (?:релевантной|соответствующей|подходящей) информации|brak (?:istotnych|odpowiednich"
        r"|powiązanych) informacji",
        r"(?:er is )?geen relevante informatie\b[^.\n]{0,40}|لا توجد معلومات[^.\n]{0,60}",
        r"none of (?:the|these|its) (?:sentences?|statements?|information|content)[^.\n]{0,60}(?:relevan|bears?|query"
        r"|relates?)"
        r"[^.\n]{0,80}",
        r"(?:there (?:is|are) )?no relevant (?:information|content|sentences?|text|facts?|data)\b[^.\n]{0,120}",
        r"nothing (?:in|of) " + _ENGLISH_SOURCE + r"[^.\n]{0,120}",
        r"(?:there (?:is|are) )?no (?:\w+ ){0,2}(?:claims?|facts?|statements?|assertions?|questions?|topics?|units?)"
        r"(?: (?:found|here|to (?:extract|list)))?(?: (?:in|within|from) (?:the|this) (?:\w+ )?text)?",
        r"keine (?:\w+ )?(?:fakten|aussagen|behauptungen|fragen|themen|tatsachen)(?: (?:im|in diesem) text)?",
        r"(?:der|dieser) (?:text|kontext|abschnitt) (?:enthält|nennt|sagt|erwähnt|gibt|liefert|macht)\b[^.\n]{0,60}"
        r"\b(?:keine\w?|nichts|nicht)\b[^.\n]{0,80}",
        r"(?:im|in dem|in diesem) text\b[^.\n]{0,60}\b(?:keine\w?|nichts|nicht)\b[^.\n]{0,80}",
        r"(?:es gibt |)keine (?:relevanten?|passenden?) (?:informationen|angaben|aussagen|inhalte)\b[^.\n]{0,80}"
        r"|keine (?:angaben?|informationen)|nicht (?:erwähnt|genannt|angegeben|bekannt)",
        r"(?:le|ce) (?:texte|contexte|passage) (?:ne|n['’])[^.\n]{1,120}|aucune information\b[^.\n]{0,80}"
        r"|non (?:mentionnée?|précisée?|spécifiée?|indiquée?)",
        r"(?:el|este) (?:texto|contexto|pasaje) no [^.\n]{1,120}|(?:no hay|ninguna) información\b[^.\n]{0,80}"
        r"|no (?:se )?(?:menciona|especifica|indica)(?:d[oa])?(?: en el texto)?",
        r"(?:il|questo) (?:testo|contesto|brano) non [^.\n]{1,120}|nessuna informazione\b[^.\n]{0,80}"
        r"|non (?:specificat|menzionat|indicat)[oa]",
        r"(?:o|este) (?:texto|contexto|trecho) não [^.\n]{1,120}|(?:não há|nenhuma) informaç[^.\n]{1,80}"
        r"|não (?:mencionad|especificad|informad)[oa]",
        r"(?:de|deze) tekst [^.\n]{0,40}\b(?:geen|niets|niet)\b[^.\n]{0,80}|niet vermeld",
        r"в (?:этом |данном )?тексте\b[^.\n]{0,40}\b(?:нет|не)\b[^.\n]{0,80}|текст не [^.\n]{1,80}"
        r"|не (?:указано|упоминается|известно|упомянуто)",
        r"(?:该|此|这段|这篇|本)?(?:文本|文中|文章|原文|上下文|文档)[^。\n]{0,8}(?:没有|未|不|并未|无)[^。\n]{0,40}"
        r"|(?:没有|无)(?:任何)?(?:相关|有关)[^。\n]{0,20}|未(?:提及|提到|说明|说|给出)",
        r"(?:この)?(?:テキスト|本文|文章|文脈|コンテキスト)[^。\n]{1,40}(?:ません|ない|なし)"
        r"|関連(?:する)?情報[^。\n]{0,12}(?:ません|ない|なし)|記載(?:なし|がありません|されていません)",
        r"(?:이 )?(?:본문|텍스트|글|문맥)[^.\n]{1,40}(?:없습니다|없음|않습니다|않음)|관련 정보[^.\n]{0,12}없(?:음"
        r"|습니다)"
        r"|언급(?:되지 않음| 없음)",
    )
)
_ABSENT = re.compile(rf"[\W_]{{0,9}}(?:{_NOT_IN_SOURCE})[\W_]{{0,9}}", re.IGNORECASE)
# What says that there is something after all
_YET = re.compile(
    r"\b(?:but|although|though|however|beyond|except|apart|other than|only|aber|jedoch|mais|pero|però|mas)\b|но |但"
    r"|しかし",
    re.I,
)
_LONGEST_ABSENCE = 300  # characters

_TASKS = (
    r"help|assist|comply|fulfill?|provide|continue|process|complete|engage|support|summari[sz]e|extract|evaluate|rate"
    r"|classify"
    r"|judge|verify|compare|restate|rewrite|rephrase|discuss|create|generate|perform|proceed|participate|analy[sz]e"
    r"|do (?:that|this)"
    r"|(?:answer|respond|reply)(?: to)?(?: (?:this|that|your|the))?(?: \w+)? (?:request|prompt|question|query)"
)
_UNABLE = (
    r"(?:can['’]t|cannot|can not|won['’]t|will not|could not|couldn['’]t|(?:am|are|['’]m|['’]re|is) (?:\w+ )?(?:unable"
    r"|not able)"
    r"(?: to)?|(?:am|['’]m) not (?:comfortable|permitted|allowed)(?: to)?|must decline(?: to)?|(?:have"
    r"|need) to decline(?: to)?"
    r"|decline to|refuse to)"
)
_REQUEST = (
    r"(?:this|the|your|that) (?:\w+ )?(?:content|request|prompt|input|message|query|material|conversation|text"
    r"|response)"
)
_PERSONAL = "|".join(
    (
        rf"(?:(?:i['’]m|i am|we['’]re|we are|so)? ?(?:really |very |so )?(?:sorry|afraid)|unfortunately|apologies"
        rf"|i apologi[sz]e"
        rf"|as an? (?:ai|large language|language)\b[^.\n]{{0,40}})?[^.\n\w]{{0,4}}(?:but |that )?(?:i|we) ?{_UNABLE}"
        rf" (?:\w+ )?(?:{_TASKS})\b(?! (?:\w+ ){{1,3}}as\b)",
        r"as an? (?:ai|artificial|large language|language)\b[^.\n]{0,80}?,? i(?:['’]m| am| do| can|['’]ve)?"
        r"(?: not|not|n['’]t| unable)\b",
        rf"(?:i apologi[sz]e|(?:my )?apologies|(?:i['’]m |i am )?sorry)\b[^.,\n]{{0,60}}, but i {_UNABLE}"
        rf" (?:\w+ )?(?:{_TASKS})\b",
        r"(?:i['’]m |i am )?sorry[^.\n\w]{0,4}(?:but )?(?:i|we) (?:can['’]t|cannot)[.!\s]",
        r"(?:i|we) (?:must|have to|need to) (?:respectfully )?(?:decline|refuse)\b",
        rf"(?:the|this) (?:assistant|model|ai|system) {_UNABLE} (?:\w+ )?(?:{_TASKS})\b",
        r"(?:es )?tut mir (?:sehr )?leid\b[^.\n]{0,40}\b(?:kann|darf|werde)\b[^.\n]{0,80}\b(?:nicht|keine\w?)\b",
        r"(?:leider |entschuldigung,? )?(?:dabei |damit |das )?(?:kann|darf) ich\b[^.\n]{0,60}\b(?:nicht"
        r"|keine\w?)\b[^.\n]{0,40}"
        r"(?:helfen|bearbeiten|unterstützen|erfüllen|nachkommen|behilflich)",
        r"ich (?:kann|darf)\b[^.\n]{0,60}\b(?:nicht|keine\w?)\b[^.\n]{0,40}"
        r"(?:helfen|bearbeiten|unterstützen|erfüllen|nachkommen|behilflich|zusammenfassen)",
        r"(?:(?:je suis )?(?:désolée?|navrée?)[^.\n]{0,20})?(?:je|nous) ne (?:peux|pouvons|suis|sommes)[^.\n]{0,40}"
        r"(?:aider|assister|traiter|répondre à (?:cette|votre) (?:demande|requête)|fournir|accéder|satisfaire"
        r"|donner suite)",
        r"(?:lo siento[^.\n]{0,20}|lamentablemente,? |disculpa[^.\n]{0,20})?no (?:puedo|podemos|me es posible"
        r"|soy capaz de)\b"
        r"[^.\n]{0,30}(?:ayudar|asistir|proporcionar|procesar|cumplir|resumir|completar|atender|responder a (?:esa"
        r"|esta|tu|su))",
        r"(?:mi dispiace[^.\n]{0,20})?non (?:posso|possiamo|sono in grado di)\b[^.\n]{0,30}"
        r"(?:aiutar|assister|elaborare|soddisfare|fornire|rispondere a (?:questa|tale) richiesta)",
        r"(?:desculpe[^.\n]{0,20}|lamento[^.\n]{0,20}|sinto muito[^.\n]{0,20})?(?:eu )?não (?:posso|consigo"
        r"|podemos)\b[^.\n]{0,30}"
        r"(?:ajudar|auxiliar|processar|fornecer|atender|cumprir)",
        r"(?:het spijt me[^.\n]{0,30}|sorry[^.\n]{0,20})?(?:ik kan|kan ik)\b[^.\n]{0,40}\bniet\b[^.\n]{0,30}"
        r"(?:helpen|verwerken|voldoen)",
        r"(?:przepraszam|przykro mi|niestety)?[^.\n]{0,20}nie (?:mogę|jestem w stanie|potrafię)\b[^.\n]{0,30}"
        r"(?:pomóc|spełnić|przetworzyć|zrealizować)",
        r"(?:извините|к сожалению|простите|мне жаль)?[^.\n]{0,20}(?:я )?не (?:могу|можем|в состоянии)\b[^.\n]{0,30}"
        r"(?:помочь|выполнить|обработать|помогать|ответить на (?:этот|ваш) запрос)",
        r"(?:omlouvám se|je mi líto|bohužel|přepáčte|prepáčte)[^.\n]{0,40}(?:nemohu|nemůžu"
        r"|nemôžem)[^.\n]{0,30}(?:pomoci|pomoct|pomôcť)",
        r"(?:üzgünüm|maalesef)[^.\n]{0,60}(?:olamam|edemem|getiremem|olamıyorum|edemiyorum|yapamam)",
        r"(?:bu konuda |bu isteği? )?(?:yardımcı olamam|yardım edemem|yerine getiremem)",
        r"jag kan[^.\n]{0,20}inte[^.\n]{0,20}hjälpa|(?:jeg )?kan (?:desværre |dessverre )?ikke hj[æe]lpe",
        r"(?:die|diese|ihre|deine) (?:anfrage|inhalte?) (?:verstößt|verstoßen|wurde abgelehnt)",
        r"(?:tyvärr|beklager|desværre|jag är ledsen|jeg beklager|förlåt)[^.\n]{0,40}kan[^.\n]{0,20}(?:inte"
        r"|ikke)[^.\n]{0,20}h\w+",
        r"(?:很?抱歉|对不起|對不起|很遗憾|不好意思)?[^。\n\w]{0,2}我?(?:们)?(?:无法|不能|無法)(?:为您|对此|協助|协助"
        r"|帮助|帮您|处理|處理|提供|完成"
        r"|满足|回应|回應|继续|參與|参与|执行|讨论)",
        r"(?:很?抱歉|对不起|對不起)[^。\n]{0,30}(?:无法|不能|無法)[^。\n]{0,20}(?:协助|協助|帮助|处理|處理|提供|完成"
        r"|满足|回应|回應|回答)",
        r"(?:申し訳|すみません|恐れ入り|残念ながら)[^。\n]{0,60}(?:できません|いたしかねます|できかねます|出来ません)",
        r"[^。\n]{0,30}(?:お応え|お手伝い|ご対応|ご協力)[^。\n]{0,12}(?:できません|いたしかねます|できかねます)",
        r"(?:죄송|유감|미안)[^\n]{0,80}(?:수 없|드릴 수 없|어렵습니다)",
        r"(?:عذر|آسف|أعتذر|للأسف)?[^.\n]{0,20}لا (?:أستطيع|يمكنني|أقدر)[^.\n]{0,30}(?:المساعدة|مساعدت|تقديم|تلبية"
        r"|معالجة)",
        r"(?:मुझे खेद|क्षमा|माफ़)[^।\n]{0,80}नहीं",
    )
)
_IMPERSONAL = (
    rf"{_REQUEST} (?:(?:may|might|could|appears? to|seems? to|has been|have been|was|were|is|violates?|cannot be"
    rf"|can['’]t be"
    r"|goes against|contains)\b)[^.\n]{0,120}\b(?P<why>violat\w*|block\w*|flagg\w*|filter\w*|prohibit\w*|harmful"
    r"|unsafe|polic(?:y|ies)"
    r"|guidelines|inappropriate|high risk|terms of (?:use|service))"
    r"|(?:content|usage|safety) (?P<what>policy|filter|guidelines)[^.\n]{0,40}(?:violat\w+|triggered|block\w+)"
    r"|(?:request|response|content|prompt) (?P<how>blocked|denied|rejected|refused|filtered|flagged)\b"
)
_OPENING = r"[\s\"'“*_>`]{0,9}(?:\{\s{0,9}\"(?:error|refusal|message|response|answer|reason)\"\s{0,3}:\s{0,3}\")?"
_REFUSES = re.compile(rf"{_OPENING}(?:(?P<personal>{_PERSONAL})|{_IMPERSONAL})", re.IGNORECASE)
# What cannot be answered for want of information is no refusal
_FOR_WANT = re.compile(
    r"\b(?:no|any|enough|sufficient|keine|aucune|ninguna|nessuna|nenhuma) (?:\w+ ){0,2}(?:info|detail|data|angab)"
    r"|relevant|pertinent"
    r"|\bbased on\b|\b(?:does|do)(?: not|n['’]t) (?:contain|mention|say|provide)|\b(?:contains|provides) no\b|根据"
    r"|基づ",
    re.IGNORECASE,
)
_LONGEST_REFUSAL = 800  # characters
_BEGINS_LIST = re.compile(
    r"^[ \t]{0,9}(?:[-*•+][ \t]|\d{1,3}[.)][ \t]|\{(?!\s{0,9}\"(?:error|refusal|message)\")|\[)", re.MULTILINE
)


def says_absent(text: str) -> bool:
    """Whether a text says that its source holds nothing, in one sentence and no more.

    >>> says_absent("There is no relevant information in the text."), says_absent("Nothing in life is free.")
    (True, False)
    """
    short = len(text) <= _LONGEST_ABSENCE and not _YET.search(text)
    return short and _ABSENT.fullmatch(text.strip()) is not None


def is_refusal(answer: str, own: Iterable[str]) -> bool:
    """Whether an answer declines the task, and does not repeat one of the `own` texts that it is about.

    >>> is_refusal("I'm sorry, but I can't help with that.", []), is_refusal("I cannot tell whether it is safe.", [])
    (True, False)
    """
    text = answer.strip()
    found = _REFUSES.match(text) if len(text) <= _LONGEST_REFUSAL else None
    if found is None or _FOR_WANT.search(text) or _BEGINS_LIST.search(text):
        return False
    said = _plain(found["personal"] or found["why"] or found["what"] or found["how"] or "")
    return not any(said in _plain(each) for each in own)


def _plain(text: str) -> str:
    return " ".join(text.replace("’", "'").split()).casefold()


# Of a template: what its examples name, all of it invented
_NAMES = re.compile(r"\{#-?\s*names:(?P<names>[^#]*?)-?#\}")


def example_names(template: str) -> tuple[str, ...]:
    """The names of a template's examples, as its comment lists them; none without one.

    >>> example_names("{# names: Ada Fenn, Osk #}\\n=== user\\n{{ text }}")
    ('Ada Fenn', 'Osk')
    """
    found = _NAMES.search(template)
    return tuple(name.strip() for name in found["names"].split(",") if name.strip()) if found else ()


def without_leaked(
    output: Mapping[str, Any], items: Sequence[str], variables: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Mapping[str, Any], int]:
    """The output without the items that hold a name which is in none of the inputs, and how many these were.

    items: the lists of the output that belong together, item by item, the first of which holds texts, or mappings with
    a `text`. variables: the inputs, texts and lists of texts; other values are passed over.

    >>> without_leaked({"facts": ["Osk is old.", "Lyon is old."]}, ["facts"], {"text": "Lyon is old"}, ("Osk",))
    ({'facts': ['Lyon is old.']}, 1)
    """
    if not items or not names:
        return output, 0
    pattern, said = _pattern(names), ""
    kept = []
    for place, item in enumerate(output[items[0]]):
        found = {name.casefold() for name in pattern.findall(item if isinstance(item, str) else item["text"])}
        said = said or ("\n".join(_texts(variables)).casefold() if found else "")
        if all(name in said for name in found):
            kept.append(place)
    leaked = len(output[items[0]]) - len(kept)
    if not leaked:
        return output, 0
    return {**output, **{name: [output[name][place] for place in kept] for name in items}}, leaked


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)")


def _texts(variables: Mapping[str, Any]) -> Iterator[str]:
    for value in variables.values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))
