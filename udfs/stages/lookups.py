"""Stages without a language model: embeddings, web search, and a classifier of text pairs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa

from untold.udfs.stages.definitions import StageDefinition, Unparsable
from untold.udfs.stages.nli import RELATION_VARIABLES, RELATIONS

_TAG = re.compile(r"</?[A-Za-z][^<>]*>")


class NoHitsError(Unparsable):
    """A body without the results of a search. The message contains no text of the body."""


class Brave:
    """The Brave Search API: GET /res/v1/web/search with `q` and `count`."""

    name, key_header = "brave", "X-Subscription-Token"
    # The limits of the service, which rejects longer queries and larger counts
    MOST_WORDS, MOST_CHARACTERS, MOST_HITS = 50, 400, 20

    def query(self, variables: Mapping[str, Any]) -> str:
        """Return URL-encoded `q`, cut at the end of a word to 50 words and 400 characters, and `count`, at most 20."""
        return urlencode({"q": self.cut(variables["query"]), "count": min(int(variables["count"]), self.MOST_HITS)})

    def cut(self, query: str) -> str:
        """Return the beginning of a query that the service accepts, with single spaces. A long single word is cut.

        >>> Brave().cut("a  b " * 40).count(" ")
        49
        """
        words = query.split()[: self.MOST_WORDS]
        while len(words) > 1 and sum(map(len, words)) + len(words) - 1 > self.MOST_CHARACTERS:
            words.pop()
        return " ".join(words)[: self.MOST_CHARACTERS]

    def hits(self, body: str) -> list[dict[str, str]]:
        """Return the hits in `web.results`, which the service omits if there are none, each url once.

        A hit has its url as `id`, and its title and description as `text`. Raises NoHitsError for another body.
        """
        try:
            answer = json.loads(body)
            results = (answer.get("web") or {}).get("results") or []
            if answer["type"] != "search":
                raise NoHitsError
            found: dict[str, str] = {}
            for hit in results:
                texts = [hit.get(name) or "" for name in ("title", "description")]
                # Tags are removed first, because a decoded `&lt;` does not start a tag
                parts = [html.unescape(_TAG.sub("", part)).strip() for part in texts]
                # Keep the first hit of an address
                found.setdefault(str(hit["url"]), " ".join(filter(None, parts)))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise NoHitsError("the body is not the result of a web search") from error
        return [{"id": url, "text": text} for url, text in found.items()]


# The search services: a name is a value of `search.model`. A new service is a class with the attributes of `Brave`
PROVIDERS = {provider.name: provider for provider in (Brave(),)}


def hits_of(body: str) -> list[dict[str, str]]:
    """Return the hits in a body of any known service. Raises NoHitsError for other bodies."""
    for provider in PROVIDERS.values():
        with suppress(NoHitsError):
            return provider.hits(body)
    raise NoHitsError("the body is not the result of a web search")


def parse_hits(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `hits`, each with id and text, in the order of the service. Raises `Unparsable` for other bodies."""
    return {"hits": hits_of(completion)}


def parse_entailment(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the most probable `relation` of `RELATIONS`, its `certainty`, and the `probability` of entailment.

    completion: the probabilities by relation as JSON, from a local classifier or a server. The relation is null if the
    completion only has the probability of entailment, and it is below 0.5.
    """
    probabilities: Mapping[str, float] = json.loads(completion)
    relation: str | None = max(RELATIONS, key=lambda name: probabilities.get(name, 0.0))
    certainty = probabilities.get(str(relation), 0.0)
    if len(probabilities) == 1 and certainty < 0.5:
        relation = None
    return {"relation": relation, "probability": probabilities["entailment"], "certainty": certainty}


def parse_nothing(completion: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Raise `Unparsable`, because a completion of this stage is a vector."""
    raise Unparsable("a text in place of a vector")


# Readers scale vectors to length 1, so that inner products are cosines
_VECTOR = pa.schema({"vector": pa.list_(pa.float32())})
_HITS = pa.schema({"hits": pa.list_(pa.struct({"id": pa.string(), "text": pa.string()}))})
# `probability` belongs to entailment, `certainty` to the relation
_ENTAILMENT = pa.schema({"relation": pa.string(), "probability": pa.float64(), "certainty": pa.float64()})
EMBED_TEXT = StageDefinition("embed_text", ("text", "kind"), parse_nothing, _VECTOR)
WEB_SEARCH = StageDefinition("web_search", ("query", "count"), parse_hits, _HITS)
CLASSIFY_ENTAILMENT = StageDefinition("classify_entailment", RELATION_VARIABLES, parse_entailment, _ENTAILMENT)
