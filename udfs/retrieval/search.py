"""Web search services, a class each: what is sent, in which header the key, and which hits an answer has."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypedDict
from urllib.parse import urlencode

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
