"""Named values, ours and those of other packages: the stages and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar


class Named(Protocol):
    """What a registry holds: a value that says its own name, by which it is found."""

    @property
    def name(self) -> str: ...


Value = TypeVar("Value", bound=Named)


class Registry(Mapping[str, Value]):
    """Values by name: our own, then those that other packages give as entry points of `group`.

    These are loaded when they are looked up: what they load imports the modules that hold registries, and a process
    that asks for one stage is spared what a metric of the same package needs. So are ours of `places`, each a name and
    where it is, `module:NAME`. A name of ours is never another's.
    """

    def __init__(self, own: Iterable[Value], group: str, places: Mapping[str, str] | None = None) -> None:
        self._values = {value.name: value for value in own}
        ours = {name: EntryPoint(name, place, group) for name, place in (places or {}).items()}
        others: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=group)}
        self._unloaded = {name: point for name, point in {**others, **ours}.items() if name not in self._values}
        self._names = tuple(dict.fromkeys((*self._values, *ours, *self._unloaded)))

    def __getitem__(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = self._unloaded[name].load()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        # Mapping would look the value up, and so load it
        return name in self._names
