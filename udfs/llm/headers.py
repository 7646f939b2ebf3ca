"""What a client sends with every call beside its body."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from openai import AsyncOpenAI, Omit, OpenAI

from untold.udfs.llm.calls import BEARER, sent_values

NOTHING: Mapping[str, Any] = MappingProxyType({})


def sent_beside(
    client: OpenAI | AsyncOpenAI,
    api_key: str | None,
    key_header: str = BEARER,
    headers: Mapping[str, Any] = NOTHING,
    query: Mapping[str, Any] = NOTHING,
) -> Any:
    """The options of openai's client that send headers and parameters with a call, as `Endpoint` says."""
    unsent = [] if api_key and key_header == BEARER else [BEARER]
    if unsent or api_key != os.environ.get("OPENAI_API_KEY"):
        unsent += ["OpenAI-Organization", "OpenAI-Project", *client._custom_headers]
    sent: dict[str, Any] = {name: Omit() for name in dict.fromkeys(unsent)}
    if api_key and key_header != BEARER:
        sent[key_header] = api_key
    own = sent_values(headers).items()
    # Under the client's own name, or both would be sent
    sent |= {BEARER if name.lower() == BEARER.lower() else name: value for name, value in own}
    return ({"headers": sent} if sent else {}) | ({"params": sent_values(query)} if query else {})
