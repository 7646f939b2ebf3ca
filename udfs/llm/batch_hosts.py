"""Which form of batches an address has."""

from __future__ import annotations

from urllib.parse import urlsplit

# Names of hosts, or their ends, that have no other form
_HOSTS = {
    ".openai.azure.com": "azure",
    ".cognitiveservices.azure.com": "azure",
    ".services.ai.azure.com": "azure",
    "api.mistral.ai": "mistral",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.groq.com": "groq",
    "api.anthropic.com": "anthropic",
}


def format_at(base_url: str) -> str:
    """The form of batches at an address: that of its maker where the host says who that is, else OpenAI's.

    >>> format_at("https://api.mistral.ai/v1"), format_at("http://localhost:8000/v1")
    ('mistral', 'openai')
    """
    host = urlsplit(base_url).hostname or ""
    return next((name for end, name in _HOSTS.items() if f".{host}".endswith(f".{end.lstrip('.')}")), "openai")
