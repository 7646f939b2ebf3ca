"""Find the citations of a response: markers and links in its text, spans, and sentences with lists of sources.

Positions are offsets in characters of the response. The sources of a response are ids of contexts or documents, and
URLs. Methods, section 19.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any

from untold.udfs.arrow import TEXT, Row, columns, over_rows
from untold.udfs.recall.segmentation import is_heading, sentences
from untold.udfs.samples.values import finite, first_of, id_of, text_of

# The names of the ends of a span, and of its sources
_SPAN = ("start", "start_index", "startIndex"), ("end", "end_index", "endIndex")
SOURCES = ("sources", "source", "citations", "url", "id", "docid", "document_id", "document_index")
# A larger number in brackets is a year, unless a source has this number
_MOST_NUMBER = 999
# A range of more numbers is no citation
_LONGEST_RANGE = 50
_TITLES = frozenset(
    (
        *("reference", "references", "reference list", "sources", "source list", "bibliography", "works cited"),
        *("citations", "footnotes", "quellen", "références", "referencias", "参考文献", "参考资料", "引用文献"),
    )
)
_ENTRY = re.compile(r"\s{0,8}(?:\[\^?(?P<label>[^\[\]\n]{1,60})\]:?|(?P<number>\d{1,3})[.)]|[-*+•]|(?=https?://))\s*")
_DEFINED = re.compile(r"\s{0,3}\[(?P<label>\^?[^\[\]\n]{1,60})\](?P<colon>:?)\s+\S")
_URL = re.compile(r"https?://[^\s<>\"\]（）【】。，；]{1,2000}")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_LIST_MARK = re.compile(r"\s{0,40}(?:[-*+•‣]|\d{1,3}[.)])\s{1,8}")
# All repetitions are possessive or short, so that the time is linear
_ADDRESS = r"(?:[^()\s<>]|\([^()\s<>]{0,200}\)){1,2000}+"
_TITLE = r"(?:\s+\"[^\"\n]{0,200}\")?\s?\)"
_LINK = rf"\(\s?<?{_ADDRESS}>?{_TITLE}"
# A marker, a link or a URL. `_GROUP` is a list of them in brackets or emphasis
_ONE = (
    rf"(?>\\?[\[［【](?:[^\[\]［］【】\n]|\[[^\[\]\n]{{0,100}}\]){{1,200}}+[\]］】](?:{_LINK})?"
    r"|https?://(?:[^\s<>()（）\[\]*]|\([^()\s<>]{0,200}\)){1,2000}+)"
)
_SOME = rf"(?:{_ONE}(?:[ ,;，；]|and\b){{0,6}}+){{1,20}}+"
_GROUP = (
    r"(?:\\?[(（\[]|(?<!\*)\*{1,2}(?!\s)|<sup>)\s?(?P<lead>(?i:(?:see|sources?|via|cf\.|e\.g\.)[:,]?\s)?)"
    rf"(?P<inner>{_SOME})\s?(?:\\?[)）\]]|\*{{1,2}}|</sup>)"
    rf"|\*{{0,2}}(?P<source>(?i:\bsources?:))\*{{0,2}}\s?(?P<last>{_SOME})\.?(?=\n|$)"
)
_TOKEN = re.compile(
    r"(?P<ticks>`{1,3})[^`\n]{1,500}(?P=ticks)"
    rf"|(?P<image>!?)\[(?P<anchor>(?:[^\[\]\n]|\[[^\[\]\n]{{0,100}}\]){{0,200}})\]"
    rf"\(\s?<?(?P<url>{_ADDRESS})>?{_TITLE}"
    rf"|{_GROUP}"
    r"|<(?P<address>https?://[^\s<>]{1,2000})>"
    r"|\\?[\[［【](?P<labels>\d{1,3}\]\s?[-–—]\s?\[\d{1,3}|[^\[\]［］【】\n]{1,300})[\]］】](?:\[\])?"
    rf"|(?P<bare>{_URL.pattern})"
)
_RANGE = re.compile(r"(\d{1,3})\]?\s?[-–—]\s?\[?(\d{1,3})")
_NUMBER = re.compile(
    r"(?i:(?:cit(?:ation|e)|ref(?:erence)?|source|doc(?:ument)?|passage|context)[:. #]{1,2})?\^?(\d{1,9})\^?(?:†.*)?"
)
# A file in a marker of OpenAI
_FILE = re.compile(r"\d{1,4}:\d{1,4}†(.+)")
# The line below the names of the columns of a table
_TABLE_RULE = re.compile(r"[^\n]{0,1000}\n[ \t]{0,3}\|?[ \t]{0,3}:?-{2,}:?[ \t]{0,3}\|[-:| \t]{0,1000}(?:[\n\r]|$)")
_PAGES = re.compile(r",\s?pp?\.\s?\d[\d–-]{0,9}")
_PARTS = re.compile(r"\s{0,8}(?:[,;，、；&]|\band\b)\s{0,8}")
_SENTENCE_END = re.compile(r"(?:^|\n|[.!?。！？][\"”’)*_]{0,3})\s{0,8}$")
# A full stop next to a marker ends a sentence, unless the text goes on in lower case
_MARKED_END = re.compile(r"[.!?](?=\s{1,8}[^\sa-z])")
# The text of a link that only names its source: a number, or an address
_NAMES_SOURCE = re.compile(r"\W*(?:\d{1,3}|[\w-]+(?:\.[\w-]+)+(?:/\S*)?)\W*")
_EMPTY_BRACKETS = re.compile(r"\s{0,8}[(（]\s{0,8}(?:[,;]\s{0,8}){0,8}[)）]")


@dataclass(frozen=True)
class CitedSentence:
    """A sentence without its markers, and the distinct sources that it cites, in order."""

    text: str
    sources: tuple[str, ...] = ()


def source_key(source: str) -> str:
    """Return the form of an id or URL in which equal sources are equal: a URL without scheme, fragment and last slash.

    >>> source_key("https://a.org/b/#:~:text=c"), source_key("doc#3")
    ('a.org/b', 'doc#3')
    """
    bare = source.strip()
    scheme, _, rest = bare.partition("://")
    return rest.partition("#")[0].rstrip("/") if scheme.lower() in ("http", "https") else bare


def normalise_sources(value: Any) -> list[str] | None:
    """Return reference sources as a list of distinct ids and URLs, None for null. A single one need not be in a list.

    Raises ValueError with the problem, without the text.

    >>> normalise_sources(["a", {"url": "https://b.org"}, "a"])
    ['a', 'https://b.org']
    """
    if finite(value) is None:
        return None
    several = value if isinstance(value, list) else [value]
    found = [_source(one, (), f"reference source {place}") for place, one in enumerate(several, start=1)]
    return list(dict.fromkeys(found))


def normalise_citations(value: Any, listed: Sequence[str]) -> list[dict[str, Any]] | None:
    """Return citations as rows of start, end and sources, None for null.

    A span has `start` and `end`, or `start_index` and `end_index`, and its sources. A text, or an object without a
    span, is the source of the marker with its number, from 1. `listed` are the ids of sources by position. A number is
    a position in `listed`, from 0. Raises ValueError with the problem, without the text.

    >>> normalise_citations([{"start_index": 0, "end_index": 4, "url": "https://a.org"}, "b"], [])[1]
    {'start': None, 'end': None, 'sources': ['b']}
    """
    if finite(value) is None:
        return None
    if not isinstance(value, list):
        raise ValueError("citations is not a list")
    return [_citation(one, listed, f"citation {place}") for place, one in enumerate(value, start=1)]


def _citation(value: Any, listed: Sequence[str], where: str) -> dict[str, Any]:
    known: Mapping[str, Any] = value if isinstance(value, Mapping) else {"source": value}
    if isinstance(known.get("url_citation"), Mapping):
        # OpenAI nests the fields of an annotation
        known = known["url_citation"]
    start, end = (first_of(known, names) for names in _SPAN)
    sources = _sources_of(first_of(known, SOURCES), listed, where)
    if start is None and end is None:
        if not sources:
            raise ValueError(f"{where} has a source without an id")
        return {"start": None, "end": None, "sources": sources[:1]}
    return {"start": _position(start, where), "end": _position(end, where), "sources": sources}


def _position(value: Any, where: str) -> int:
    """Return an end of a span, which some files have as a float. Raises ValueError for any other value."""
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0 or value % 1:
        raise ValueError(f"start and end of {where} are not two positions")
    return int(value)


def citations_of_parts(parts: Sequence[Mapping[str, Any]], listed: Sequence[str]) -> list[dict[str, Any]]:
    """Return the citations of a response in parts {text, citations}, which are its sentences, joined by spaces.

    A citation is an id, or a position in `listed` from 0 (TREC RAG). An object has ids with confidences, the highest
    first (TREC RAGTIME).

    >>> citations_of_parts([{"text": "One.", "citations": [1]}, {"text": "Two."}], ["a", "b"])
    [{'start': 0, 'end': 4, 'sources': ['b']}, {'start': 5, 'end': 9, 'sources': []}]
    """
    found, start = [], 0
    for place, one in enumerate(parts, start=1):
        end = start + len(one["text"])
        sources = _sources_of(one.get("citations"), listed, f"sentence {place}")
        found.append({"start": start, "end": end, "sources": sources})
        start = end + 1
    return found


def _sources_of(value: Any, listed: Sequence[str], where: str) -> list[str]:
    if finite(value) is None:
        return []
    if isinstance(value, Mapping):
        value = sorted(value, key=lambda name: -(value[name] if isinstance(value[name], int | float) else 0))
    several = value if isinstance(value, list) else [value]
    return list(dict.fromkeys(_source(one, listed, where) for one in several))


def _source(value: Any, listed: Sequence[str], where: str) -> str:
    """Return the id or URL of a source. A position without a source becomes its marker, `[n]` with n from 1."""
    if isinstance(value, Mapping):
        value = first_of(value, SOURCES)
    if isinstance(value, int) and not isinstance(value, bool):
        return listed[value] if 0 <= value < len(listed) else f"[{value + 1}]"
    name = None if isinstance(value, list | Mapping) else id_of(text_of(value))
    if not name:
        raise ValueError(f"{where} has a source without an id")
    return name


def cited_sentences(
    response: str, citations: Sequence[Mapping[str, Any]] | None, ids: Sequence[str]
) -> list[CitedSentence]:
    """Return the sentences of a response with their sources, in linear time.

    `citations`: rows of `normalise_citations`. Disjoint spans over the whole text are its sentences. Other spans belong
    to each sentence that they overlap, and without spans, markers and links of the text are read. `ids` are the ids of
    contexts by position: `[n]` is an entry n of the list of references in the text, or the context with the id n, or
    the n-th context. A marker after a full stop belongs to the sentence before it. Code has no markers, and fenced code
    and the list of references have no sentences.

    >>> cited_sentences("It rains. [1] It snows [2, 3].", None, ["a", "b"])[1].sources
    ('b', '[3]')
    >>> cited_sentences("Ice [floats](https://a.org).", None, [])
    [CitedSentence(text='Ice floats.', sources=('https://a.org',))]
    """
    rows = citations or ()
    numbered = [source for one in rows if one["start"] is None for source in one["sources"]]
    spans = [(one["start"], one["end"], tuple(one["sources"])) for one in rows if one["start"] is not None]
    spans.sort(key=itemgetter(0, 1))
    if spans and _cover(response, spans):
        labels = _Labels(numbered, {}, ids)
        units = ((_plain(_MarkedText(response[start:end], labels).text), own) for start, end, own in spans)
        return [CitedSentence(text, own) for text, own in units if text]
    body, entries = _without_references(response)
    reader = _MarkedText(body, _Labels(numbered, entries, ids))
    found = list(reader.sentences())
    by_sentence = _of_spans(found, spans) if spans else reader.marked(found)
    cited = (CitedSentence(one.text, tuple(dict.fromkeys(own))) for one, own in zip(found, by_sentence, strict=True))
    heads = [is_heading(one.text) or _TABLE_RULE.match(reader.text, one.end) is not None for one in found]
    return [one for one, is_head in zip(cited, heads, strict=True) if one.sources or not is_head]


@over_rows(columns(sample_id=TEXT, unblocked=TEXT))
def unblocked_batches(row: Row) -> Row:
    """Return sample_id, unblocked. row: sample_id, response, blocked_sources list<string>.

    `unblocked` is the response without the sentences that cite a blocked source, null if no sentence does.
    """
    return {**row, "unblocked": without_sources(row["response"], row["blocked_sources"] or ())}


def without_sources(response: str, blocked: Collection[str]) -> str | None:
    """Return the response without the sentences whose markers or links cite a blocked source, None if none does.

    >>> without_sources("It rains [1]. It snows.\\n\\n[1]: https://a.org/b", ["http://a.org/b/"])
    ' It snows.\\n\\n[1]: https://a.org/b'
    """
    body, entries = _without_references(response)
    reader = _MarkedText(body, _Labels((), entries, ()))
    keys, found, kept = set(map(source_key, blocked)), list(reader.sentences()), response
    for one, own in reversed(list(zip(found, reader.marked(found), strict=True))):
        if not keys.isdisjoint(map(source_key, own)):
            kept = kept[: one.start] + kept[one.stop :]
    return None if kept == response else kept


def _cover(text: str, spans: Sequence[tuple[int, int, Any]]) -> bool:
    """Return True if the spans, in order, are disjoint and leave only white space."""
    end = 0
    for start, stop, _ in spans:
        if start < end or text[end:start].strip():
            return False
        end = stop
    return not text[end:].strip()


def _of_spans(found: Sequence[_Sentence], spans: Sequence[tuple[int, int, tuple[str, ...]]]) -> list[list[str]]:
    """Return the sources of each sentence: those of the spans that overlap it."""
    sources: list[list[str]] = [[] for _ in found]
    ends = [one.stop for one in found]
    for start, stop, own in spans:
        for place in range(bisect_right(ends, start), len(found)):
            if found[place].start >= stop:
                break
            sources[place] += own
    return sources


@dataclass(frozen=True)
class _Labels:
    """The sources of labels: given ones by number, entries of the text's own list by label, and ids of contexts."""

    numbered: Sequence[str]
    entries: Mapping[str, str | None]
    ids: Sequence[str]
    known: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", frozenset(self.ids))

    def read(self, labels: str) -> list[str] | None:
        """Return the sources of the text in brackets, None if it is no marker."""
        bare = labels.rstrip("\\").strip()
        parts = [bare] if bare in self.known else _PARTS.split(_PAGES.sub("", bare))
        if len(parts) > 1 and "0" in parts and not {"0"} & {*self.known, *self.entries}:
            # An interval, such as [0, 1]
            return None
        found = [self._one(part) for part in parts]
        return None if None in found else [source for own in found for source in own or ()]

    def is_word(self, label: str) -> bool:
        """Return True if a label with a definition is a text of the sentence, such as `[rain]`."""
        return label in self.entries and label.replace(" ", "").isalpha()

    def _one(self, label: str) -> list[str] | None:
        if entry := self.entries.get(label):
            return [entry]
        if label in self.known and not label.isdecimal():
            return [label]
        if file := _FILE.fullmatch(label):
            return [file[1]]
        if span := _RANGE.fullmatch(label):
            first, last = int(span[1]), int(span[2])
            is_short = first <= last < first + _LONGEST_RANGE
            return [self._numbered(number) for number in range(first, last + 1)] if is_short else None
        if number := _NUMBER.fullmatch(label):
            is_known = number[1] in self.known or number[1] in self.entries
            return [self._numbered(int(number[1]))] if is_known or int(number[1]) <= _MOST_NUMBER else None
        return [f"[{label}]"] if label in self.entries else None

    def _numbered(self, number: int) -> str:
        name = str(number)
        if 0 < number <= len(self.numbered):
            return self.numbered[number - 1]
        if entry := self.entries.get(name):
            return entry
        if name in self.known:
            return name
        return self.ids[number - 1] if 0 < number <= len(self.ids) else f"[{name}]"


def _without_references(text: str) -> tuple[str, dict[str, str | None]]:
    """Return the text with spaces in place of fenced code and references, and the URL of each entry by its label.

    References are footnotes `[^n]: ...`, definitions `[n]: ...`, lines `[n] ... URL`, and lists below a title.
    """
    kept: list[str] = []
    entries: dict[str, str | None] = {}
    lines = text.split("\n")
    fence, is_list, count = "", False, 0
    for place, line in enumerate(lines):
        marks = _FENCE.match(line)
        opened = marks[1] if marks else ""
        if fence or opened:
            fence = "" if fence and opened.startswith(fence) else fence or opened
            kept.append(" " * len(line))
            continue
        if line.lstrip().startswith("#") or _is_title(line):
            below = next((each for each in lines[place + 1 : place + 6] if each.strip()), "")
            is_list = _is_title(line) and _ENTRY.match(below) is not None
            kept.append(" " * len(line) if is_list else line)
            continue
        # Text below a blank line ends a list of references
        is_list = is_list and bool(
            lines[place - 1].strip() or _ENTRY.match(line) or _URL.search(line) or not line[:1].isalnum()
        )
        label = _label_of(line, is_list=is_list, count=count)
        if label is not None:
            count += is_list
            entries.setdefault(label, _first_url(line))
        kept.append(" " * len(line) if is_list or label is not None else line)
    return "\n".join(kept), entries


def _is_title(line: str) -> bool:
    bare = re.sub(r"^[\s#*_\d.]+|[\s*_#:：]+$", "", line[:80]) if len(line) < 80 else ""
    return bare.casefold() in _TITLES


def _label_of(line: str, *, is_list: bool, count: int) -> str | None:
    """Return the label of a reference in a line, None for another line. `count`: the entries of the list so far."""
    if is_list:
        found = _ENTRY.match(line)
        return (found["label"] or found["number"] or str(count + 1)) if found and line[found.end() :].strip() else None
    defined = _DEFINED.match(line)
    if defined is None or not (defined["colon"] or defined["label"].isdecimal()):
        return None
    return defined["label"] if defined["label"].startswith("^") or _first_url(line) is not None else None


def _first_url(text: str) -> str | None:
    found = _URL.search(text)
    if found is None:
        return None
    url = found[0].rstrip(".,;:*_'!?")
    excess = url.count(")") - url.count("(")
    return url[:-excess] if excess > 0 and url.endswith(")" * excess) else url


def _plain(text: str) -> str:
    """Return a text with single spaces, without the brackets that markers leave empty."""
    plain = " ".join(_EMPTY_BRACKETS.sub("", text).split())
    return plain[:-1] if plain.endswith("..") and not plain.endswith("...") else plain


@dataclass(frozen=True)
class _Sentence:
    """A sentence of the cleaned text from `begin` to `end`, and its positions `start` to `stop` in the response."""

    text: str
    begin: int
    end: int
    start: int
    stop: int


class _MarkedText:
    """A text in its cleaned form, with the sources at positions of this form."""

    def __init__(self, text: str, labels: _Labels) -> None:
        self._labels = labels
        self._parts: list[str] = []
        self._length = 0
        self._after_mark = False
        # Positions of parts in the cleaned text and in the text
        self._places: list[int] = []
        self._origins: list[int] = []
        self.marks: list[tuple[int, list[str]]] = []
        last = 0
        for found in _TOKEN.finditer(text):
            self._add(text[last : found.start()], last)
            kept, sources = self._read(found)
            if kept:
                self._add(kept, found.start())
            last = found.end()
            if sources:
                self._mark(sources)
        self._add(text[last:], last)
        self.text = "".join(self._parts)

    def _read(self, found: re.Match[str]) -> tuple[str, list[str]]:
        """Return the text that is kept of a token, and the sources that it cites."""
        if found["ticks"]:
            return found[0], []
        if inner := found["inner"] or found["last"]:
            return self._read_group(found, inner)
        if found["labels"] is not None:
            sources = self._labels.read(found["labels"])
            is_text = self._labels.is_word(found["labels"]) and found.string[found.start() - 1 : found.start()] != "]"
            return (found[0] if sources is None or is_text else ""), sources or []
        if found["address"]:
            return "", [found["address"]]
        if found["bare"]:
            return "" if self._is_alone(found) else found[0], [_first_url(found[0]) or found[0]]
        url, anchor = found["url"], found["anchor"]
        if found["image"] or anchor.startswith("!["):
            return "", []
        if not url.startswith(("http://", "https://")) and url not in self._labels.known:
            sources = self._labels.read(anchor.strip("[]\\")) or []
            return ("" if sources else anchor), sources
        return ("" if _NAMES_SOURCE.fullmatch(anchor) else anchor), [url]

    def _is_alone(self, found: re.Match[str]) -> bool:
        """Return True if a token is after a sentence or begins a line, and no text continues the sentence."""
        before = self._parts[-1][-12:] if self._parts else ""
        after = found.string[found.end() : found.end() + 12].lstrip(" \t")
        return _SENTENCE_END.search(before) is not None and not after[:1].islower()

    def _read_group(self, found: re.Match[str], inner: str) -> tuple[str, list[str]]:
        """Return the text and the sources of citations in brackets. After a sentence, none is text."""
        read = [(one, *self._read(one)) for one in _TOKEN.finditer(inner)]
        sources = [source for *_, own in read for source in own]
        if not sources:
            return found[0], []
        is_bare = all(own and (one["bare"] or not kept) for one, kept, own in read)
        if is_bare or found["lead"] or found["source"] or self._is_alone(found):
            return "", sources
        return found[0].replace(inner, _TOKEN.sub(lambda one: self._read(one)[0], inner)), sources

    def _add(self, part: str, origin: int) -> None:
        if not part:
            return
        if self._after_mark and part[0].isalnum() and self._parts and not self._parts[-1].endswith("\n"):
            self._parts.append(" ")
            self._length += 1
        self._after_mark = False
        self._places.append(self._length)
        self._origins.append(origin)
        self._parts.append(part)
        self._length += len(part)

    def _mark(self, sources: list[str]) -> None:
        """Add sources at the end of the text so far, without its last spaces."""
        while self._parts and self._parts[-1] != (bare := self._parts[-1].rstrip(" \t")):
            self._length -= len(self._parts[-1]) - len(bare)
            self._parts[-1] = bare
            if not bare:
                self._parts.pop()
        self._after_mark = True
        self.marks.append((self._length, sources))

    def sentences(self) -> Iterator[_Sentence]:
        """Yield the sentences of each line. Marks of list items and lines without letters are left out."""
        # Cut at line ends, and at marks that end a sentence
        cuts = {0, len(self.text), *(found.end() for found in re.finditer("\n", self.text))}
        for place, _ in self.marks:
            end = _MARKED_END.match(self.text, max(place - 1, 0)) or _MARKED_END.match(self.text, place)
            cuts |= {end.end()} if end else set()
        for begin, stop in pairwise(sorted(cuts)):
            piece = self.text[begin:stop]
            mark = _LIST_MARK.match(piece)
            place = mark.end() if mark else 0
            for text in sentences(piece[place:]):
                at = max(piece.find(text, place), place)
                place = at + len(text)
                shown = _plain(text)
                if any(map(str.isalnum, shown)):
                    ends = self._origin(begin + at), self._origin(begin + place - 1) + 1
                    yield _Sentence(shown, begin + at, begin + place, *ends)

    def _origin(self, place: int) -> int:
        part = bisect_right(self._places, place) - 1
        return self._origins[part] + place - self._places[part]

    def marked(self, found: Sequence[_Sentence]) -> list[list[str]]:
        """Return the sources of each sentence. A mark before the first sentence of a line belongs to this sentence."""
        sources: list[list[str]] = [[] for _ in found]
        ends = [one.end for one in found]
        for place, own in self.marks:
            after = bisect_left(ends, place)
            if after == len(found) or self.text.find("\n", place, found[after].begin) >= 0:
                after = max(after - 1, 0)
            if found:
                sources[after] += own
        return sources
