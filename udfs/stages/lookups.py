"""Stages without a language model: embeddings, web search, and a classifier of text pairs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypedDict
from urllib.parse import urlencode

import pyarrow as pa

from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.nli import RELATION_VARIABLES, RELATIONS

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


class WebHit(TypedDict):
    """What a search found: its address, and what the service shows of it."""

    id: str
    text: str


class NoHitsError(ValueError):
    """A body that is no answer to a search. The message says so, and nothing of the body."""


class Provider(Protocol):
    """A service as `search.model` names it. Another one is a class with these, named in `PROVIDERS`."""

    name: ClassVar[str]
    key_header: ClassVar[str]

    def query(self, variables: Mapping[str, Any]) -> str:
        """The query of the address for the variables query and count, URL-encoded."""

    def hits(self, body: str) -> list[WebHit]:
        """The hits of an answer's body, in the service's order, an address once. Raises NoHitsError."""


class Brave:
    """The Brave Search API: GET /res/v1/web/search with `q` and `count`."""

    name: ClassVar[str] = "brave"
    key_header: ClassVar[str] = "X-Subscription-Token"
    # The service's own limits: what is longer or more it refuses
    MOST_WORDS, MOST_CHARACTERS, MOST_HITS = 50, 400, 20

    def query(self, variables: Mapping[str, Any]) -> str:
        """`q`, cut to 50 words and 400 characters at a word's end, and `count`, 20 at most."""
        return urlencode({"q": self.cut(variables["query"]), "count": min(int(variables["count"]), self.MOST_HITS)})

    def cut(self, query: str) -> str:
        """The beginning of a query that the service takes, white space collapsed; a longer single word is cut itself.

        >>> Brave().cut("a  b " * 40).count(" ")
        49
        """
        words = query.split()[: self.MOST_WORDS]
        while len(words) > 1 and sum(map(len, words)) + len(words) - 1 > self.MOST_CHARACTERS:
            words.pop()
        return " ".join(words)[: self.MOST_CHARACTERS]

    def hits(self, body: str) -> list[WebHit]:
        """Of `web.results`, which an answer without any leaves out: the url, and title and description as text."""
        try:
            answer = json.loads(body)
            results = (answer.get("web") or {}).get("results") or []
            if answer["type"] != "search":
                raise NoHitsError
            found: dict[str, str] = {}
            for hit in results:
                # Of hits with one address the first counts
                found.setdefault(str(hit["url"]), _text_of(hit))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise NoHitsError("the answer is no result of a web search") from error
        return [WebHit(id=url, text=text) for url, text in found.items()]


def _text_of(hit: Mapping[str, Any]) -> str:
    """Title, space, description. Tags go before entities are resolved: a `<` that was written as one is no tag."""
    parts = (html.unescape(_TAG.sub("", hit.get(name) or "")).strip() for name in ("title", "description"))
    return " ".join(filter(None, parts))


PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in (Brave(),)}


def hits_of(body: str) -> list[WebHit]:
    """The hits of a body that some known service answered. Raises NoHitsError where it is none's."""
    for provider in PROVIDERS.values():
        try:
            return provider.hits(body)
        except NoHitsError:
            continue
    raise NoHitsError("the answer is no result of a web search")


KINDS = ("query", "document")
# Vectors are brought to length 1 when they are read: inner products are cosines
VECTOR_SCHEMA = pa.schema([("vector", pa.list_(pa.float32()))])
HITS_SCHEMA = pa.schema([("hits", pa.list_(pa.struct([("id", pa.string()), ("text", pa.string())])))])
# `probability` is that of entailment, `certainty` that of the relation
ENTAILMENT_SCHEMA = pa.schema([("relation", pa.string()), ("probability", pa.float64()), ("certainty", pa.float64())])


def parse_hits(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`hits`: {id, text} of each, in the service's order. Raises `Unparsable` for what no known service answers."""
    try:
        return {"hits": hits_of(completion)}
    except NoHitsError as error:
        raise Unparsable(str(error)) from None


def parse_entailment(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """`relation`, the most probable one of `RELATIONS`, how probable (`certainty`), and `probability`, of entailment.

    completion: the probabilities by relation, of a local classifier or a server's (JSON). Where that of entailment is
    all that is known, and less than a half, the relation is null.
    """
    probabilities: Mapping[str, float] = json.loads(completion)
    relation: str | None = max(RELATIONS, key=lambda name: probabilities.get(name, 0.0))
    certainty = probabilities.get(str(relation), 0.0)
    if len(probabilities) == 1 and certainty < 0.5:
        relation = None
    return {"relation": relation, "probability": probabilities["entailment"], "certainty": certainty}


def parse_nothing(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `Unparsable`: a vector is no text."""
    raise Unparsable("a text where a vector belongs")


EMBED_TEXT = StageDefinition("embed_text", ("text", "kind"), parse_nothing, VECTOR_SCHEMA)
WEB_SEARCH = StageDefinition("web_search", ("query", "count"), parse_hits, HITS_SCHEMA)
CLASSIFY_ENTAILMENT = StageDefinition("classify_entailment", RELATION_VARIABLES, parse_entailment, ENTAILMENT_SCHEMA)
