"""Where a run's calls go: an address of the settings, or the embedded model's server, started when first needed."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from untold.jobs.asking import local_model
from untold.jobs.asking.calling import address_of, section_of
from untold.jobs.run.refusals import EnvironmentVariableError
from untold.jobs.settings.model import Settings
from untold.udfs.llm.calls import is_loopback
from untold.udfs.llm.keys import LOCAL

# Some endpoints say 403 where others say 401; the client writes either as this
_ABOUT_KEYS = re.compile(r"HTTP 40[13]\b")
DEMO_LABEL = "embedded demo model"


def key_remedy(variable: str | None, section: str = "llm") -> str:
    """What to do about the key where the endpoint of a section of the settings asks for another, or for any.

    It names the variable of the key and says whether that is set, never what is in it.
    """
    name = f"{section}.api_key_env"
    if variable is None:
        return f"no key was sent: none is named for this address; name its variable with --set {name}=NAME"
    known = "is set" if os.environ.get(variable) else "is not set"
    return f"check the key: {variable} ({name}) {known}"


def explain_refusal(error: str, keys: Iterable[str | None], section: str = "llm") -> str:
    """What endpoints that refuse a run said, and what to do where it is about the key; `keys` are their variables."""
    remedies = dict.fromkeys(key_remedy(variable, section) for variable in keys)
    return f"{error}: {'; '.join(remedies)}" if _ABOUT_KEYS.search(error) else error


def check_network(addresses: Iterable[str]) -> None:
    """Raise EnvironmentVariableError for certificates or a proxy that no client of these addresses can use."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        path = os.environ.get(name)
        if path and (reason := _unusable_authorities(name, path)):
            raise EnvironmentVariableError(f"{name} names {path}, {reason}; correct the path, or unset {name}")
    if all(is_loopback(address) for address in addresses):
        return
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"):
        for variable in (name, name.lower()):
            scheme, separator, _ = os.environ.get(variable, "").partition("://")
            if separator and scheme.lower() not in ("http", "https"):
                raise EnvironmentVariableError(
                    f"{variable} names a proxy of the kind {scheme}://, which is not supported; set it to an http:// "
                    f"proxy, or unset {variable}"
                )


def _unusable_authorities(name: str, path: str) -> str | None:
    """Return the reason why a file or a folder of certificates cannot be used."""
    if name == "SSL_CERT_DIR":
        return None if os.path.isdir(path) else "which is no folder"
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        return "which holds no certificates"
    except OSError as error:
        return f"which cannot be read ({error.strerror or type(error).__name__})"
    return None


def addresses_of(settings: Settings) -> list[str]:
    """Return the addresses that a run under these settings may call."""
    llm = [str(one.base_url) for one in settings.llm.each if one.base_url]
    return llm + [address for name in ("embeddings", "search", "classifier") if (address := address_of(settings, name))]


def clear_text_warning(base_url: str | None) -> str | None:
    """What to say of an address that is called over a network without encryption; None for any other."""
    if base_url is None or not base_url.startswith("http://") or is_loopback(base_url):
        return None
    return f"{base_url} is not encrypted: others on the network can read texts and key; use https:// if you can"


class RunEndpoint:
    """Gives the base URL of a run. The embedded server starts at the first call of `base_url` and ends with `close`.

    Making one reads the model's file where it is not known yet, for its sha256 is part of every request's id. `wait`:
    whether it waits for another run's server on this machine. Raises LocalModelError where the model cannot be used.
    Raises EnvironmentVariableError for certificates or a proxy that no client can use.
    """

    def __init__(self, settings: Settings, *, embedded: bool, wait: bool, notify: Callable[[str], None]) -> None:
        self._settings, self._wait, self._notify = settings, wait, notify
        self._stack = ExitStack()
        self._base_url = settings.llm.each[0].base_url
        self._told: set[str] = set()
        check_network(addresses_of(settings))
        self._file = local_model.model_file(settings.llm.local_model) if embedded else None

    @property
    def model_sha256(self) -> str | None:
        """The sha256 of the embedded model's file; None for an address."""
        return self._file.sha256 if self._file else None

    def base_url(self, api: str = "chat") -> str:
        """The address to call for an API, of several the first; "" for a local model, which has none.

        The first time it says where texts and key would go in clear text.
        """
        if api == LOCAL:
            return ""
        section = section_of(api)
        address = self._base_url if section == "llm" else address_of(self._settings, section)
        if section not in self._told:
            self._told.add(section)
            for one in self._settings.llm.each if section == "llm" else [None]:
                if warning := clear_text_warning(one.base_url if one else address):
                    self._notify(warning)
        if section != "llm":
            assert isinstance(address, str)
            return address
        # Only now: it holds more than a GB of memory, and a run whose store has everything asks nothing
        if self._base_url is None:
            assert self._file is not None
            server = local_model.LocalServer(self._file, wait=self._wait, notice=self._notify)
            self._base_url = self._stack.enter_context(server).base_url
        return self._base_url

    def close(self) -> None:
        """Ends the embedded server, if one was started."""
        self._stack.close()

    def __enter__(self) -> RunEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
