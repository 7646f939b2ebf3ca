"""Where a run's calls go: an address of the settings, or the embedded model's server, started when first needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from jobs.asking import local_model
from jobs.settings.model import Settings

DEMO_LABEL = "embedded demo model"


class RunEndpoint:
    """Gives the base URL of a run. The embedded server starts at the first call of `base_url` and ends with `close`."""

    def __init__(self, settings: Settings, *, embedded: bool, wait: bool, notify: Callable[[str], None]) -> None:
        self._settings, self._wait, self._notify = settings, wait, notify
        self._stack = ExitStack()
        self._base_url = settings.llm.base_url
        self._file = local_model.model_file(settings.llm.local_model) if embedded else None

    @property
    def model_sha256(self) -> str | None:
        """The sha256 of the embedded model's file; None for an address."""
        return self._file.sha256 if self._file else None

    def base_url(self) -> str:
        """The address to call."""
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
