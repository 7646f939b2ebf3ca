"""The lookups of the model server: vectors with known cosines, and a search over a small world."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any
from urllib.parse import parse_qs

from tests.fakes.arrivals import CLASSIFYING_PATHS
from tests.fakes.classifier import FakeClassifier, classes_content, pairs_of
from tests.fakes.facts import QA_TOPICS, chain, normalise
from tests.fakes.names import FIRST, LAST, name_of
from tests.fakes.replies import Reply, error_reply, http_message
from tests.fakes.rules import Request, hash_of
from tests.fakes.world import _leaf

DIMENSION = 64
EMBEDDINGS_PATH, SEARCH_PATH = "/v1/embeddings", "/res/v1/web/search"
LOOKUP_PATHS = (EMBEDDINGS_PATH, SEARCH_PATH, *CLASSIFYING_PATHS)
LOOKUPS = ("embed_text", "web_search", "classify_entailment")
# The limits of the service, which refuses longer queries and larger counts
MOST_WORDS, MOST_CHARACTERS, MOST_HITS = 50, 400, 20
_WORD = re.compile(r"\w+")


def vector_of(text: str) -> list[float]:
    """Return a hashed bag of the words of a text, 64 dimensions: each word, case folded, counts in one of them.

    A word of an alias (`tests.fakes.names`) counts as the word of the name, so aliases have the maximum similarity.
    Namesakes are near too, with two more words.
    """
    vector = [0.0] * DIMENSION
    for word in map(name_of, _WORD.findall(text.casefold())):
        vector[hash_of(word.encode("utf-8", "replace")) % DIMENSION] += 1.0
    return vector


def payload_of_lookup(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stage and its variables. Raises LookupError or TypeError for a body that is not a request."""
    if path == SEARCH_PATH:
        return {"stage": "web_search", "query": body["q"], "count": int(body["count"])}
    if path in CLASSIFYING_PATHS:
        pairs = pairs_of(path, body)
        return {
            "stage": "classify_entailment",
            "path": path,
            "pairs": pairs,
            "texts": [text for pair in pairs for text in pair],
        }
    texts = [body["input"]] if isinstance(body["input"], str) else list(body["input"])
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("texts are strings")
    return {"stage": "embed_text", "texts": texts}


def query_of(target: str) -> dict[str, str]:
    """Return the fields of a URL's query, with the first value of each name."""
    return {name: values[0] for name, values in parse_qs(target.partition("?")[2]).items()}


def lookup_content(request: Request, tokens: int, deeds: Mapping[str, Any], classifier: FakeClassifier) -> Reply:
    """Return the response to a lookup, if no rule for the call applies."""
    if request.payload["stage"] == "classify_entailment":
        return classes_content(request, tokens, deeds, classifier)
    if request.payload["stage"] == "web_search":
        query = request.payload["query"]
        if len(query) > MOST_CHARACTERS or len(query.split()) > MOST_WORDS or request.payload["count"] > MOST_HITS:
            return error_reply(422, {"code": "VALIDATION", "detail": "the query is too long"})
        return _json_reply(search_body(query, request.payload["count"]), deeds)
    return _json_reply(embeddings_body(request, tokens, deeds), deeds)


def _json_reply(body: Mapping[str, Any], deeds: Mapping[str, Any]) -> Reply:
    content = json.dumps(body).encode()
    return Reply(200, http_message(200, content[: len(content) // 2] if "cut_json" in deeds else content))


def embeddings_body(request: Request, tokens: int, deeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vectors with their index, the last text first, or wrong vectors if the deeds require it.

    The deeds `nan`, `zero` and `short` apply to the texts that contain their value, or to all texts. `drop` omits one
    text.
    """
    data = []
    for index, text in enumerate(request.payload["texts"]):
        data.append({"object": "embedding", "index": index, "embedding": _spoilt(vector_of(text), text, deeds)})
    data.reverse()
    body = {"object": "list", "model": request.body.get("model", ""), "data": data[1:] if "drop" in deeds else data}
    return body if "no_usage" in deeds else body | {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _spoilt(vector: list[float], text: str, deeds: Mapping[str, Any]) -> list[float]:
    if _hits(deeds.get("nan"), text):
        return [float("nan"), *vector[1:]]
    if _hits(deeds.get("zero"), text):
        return [0.0] * len(vector)
    return vector[1:] if _hits(deeds.get("short"), text) else vector


def _hits(value: Any, text: str) -> bool:
    return value is True or (isinstance(value, str) and value in text)


@lru_cache(maxsize=1)
def documents() -> Sequence[dict[str, str]]:
    """Return the corpus: a document {url, title, text} per subject and topic, with a fact and its entailments."""
    found = []
    for subject in (f"{first} {last}" for first in FIRST for last in LAST):
        for topic in QA_TOPICS:
            leaf = _leaf(Random(f"{subject}/{topic}"), topic, subject)
            text = " ".join(fact.sentence(form) for fact in chain(leaf) for form in range(fact.forms))
            url = f"https://world.example/{subject.replace(' ', '-')}/{topic}?lang=en&page=1"
            found.append({"url": url, "title": f"{topic} of {subject}".title(), "text": text})
    return found


@lru_cache(maxsize=1)
def _words_of_documents() -> Sequence[frozenset[str]]:
    return [frozenset(_WORD.findall(normalise(f"{one['title']} {one['text']}"))) for one in documents()]


def search(query: str, count: int) -> list[dict[str, str]]:
    """Return the documents with the most common words with a query, at least one. Ties are sorted by address."""
    asked = frozenset(_WORD.findall(normalise(query)))
    scored = [
        (-len(asked & words), one["url"], one) for one, words in zip(documents(), _words_of_documents(), strict=True)
    ]
    return [one for score, _, one in sorted(scored, key=lambda row: row[:2]) if score][:count]


def search_body(query: str, count: int) -> dict[str, Any]:
    """Return a response in Brave's format, with entities in texts, and the words of the query in tags."""
    asked = frozenset(_WORD.findall(normalise(query)))
    results = [
        {
            "type": "search_result",
            "url": one["url"],
            "title": html.escape(one["title"]),
            "description": _marked(one["text"], asked),
        }
        for one in search(query, count)
    ]
    body: dict[str, Any] = {"type": "search", "query": {"original": query}}
    return body | ({"web": {"type": "search", "results": results}} if results else {})


def _marked(text: str, words: frozenset[str]) -> str:
    return re.sub(
        r"\w+",
        lambda found: f"<strong>{found[0]}</strong>" if normalise(found[0]) in words else found[0],
        html.escape(text),
    )
