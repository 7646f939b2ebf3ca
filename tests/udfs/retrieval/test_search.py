"""Test the requests to a search service and the parsed results."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untold.udfs.stages.lookups import Brave, NoHitsError, hits_of


@given(st.lists(st.text(min_size=1, max_size=120), max_size=80).map(" ".join))
def test_a_query_is_the_longest_beginning_of_whole_words_within_the_limits(query: str) -> None:
    words, cut = query.split(), Brave().cut(query)
    kept = cut.split()
    assert len(kept) <= 50
    assert len(cut) <= 400
    assert kept == words[: len(kept)] or len(words[0]) > 400
    if len(kept) < min(len(words), 50):
        assert len(" ".join(words[: len(kept) + 1])) > 400


def test_what_is_sent_is_encoded() -> None:
    assert parse_qs(Brave().query({"query": "bees & honey?", "count": 40})) == {"q": ["bees & honey?"], "count": ["20"]}


def body(*hits: object, **fields: object) -> str:
    return json.dumps({"type": "search", "web": {"results": hits}, **fields})


def test_tags_go_and_entities_are_resolved_and_an_address_counts_once() -> None:
    hit = {"url": "http://a", "title": "<strong>Bees</strong> &amp; honey", "description": "2 &lt; 3, <b>x</b> &quot;y"}
    again = {"url": "http://a", "title": "other", "description": None}
    bare = {"url": "http://b", "title": "a < b", "description": None}
    assert hits_of(body(hit, bare, again)) == [
        {"id": "http://a", "text": 'Bees & honey 2 < 3, x "y'},
        {"id": "http://b", "text": "a < b"},
    ]


@pytest.mark.parametrize(
    "text", ["", "<html>", "[]", "{}", '{"type": "other"}', body({"title": "no address"}), body(1)]
)
def test_an_invalid_response_to_a_search_has_no_hits(text: str) -> None:
    with pytest.raises(NoHitsError, match=r"^[^<]*$"):
        hits_of(text)
