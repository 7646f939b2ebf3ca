"""Test the settings of a metric in another package.

They are set, checked, listed and hashed like the built-in settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.jobs.metrics.toy import ToySettings
from tests.jobs.settings.cases import SERVER, load
from untold.jobs import doctor
from untold.jobs.run import session
from untold.jobs.settings import layers, model
from untold.jobs.settings.fields import Count, Section
from untold.jobs.settings.layers import unknown_variables
from untold.jobs.settings.loading import describe
from untold.jobs.settings.model import Settings, SettingsError, result_settings, settings_model

Bring = Callable[..., None]


class OtherSettings(Section):
    words: Count = 1


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bring]:
    """Add sections to metrics. Each section is a tuple of the metric, the section name and the class."""
    cached = (model.settings_model, layers.known_settings, layers.known_sections)

    def bring(*sections: tuple[str, str, type[Section]]) -> None:
        monkeypatch.setattr(model, "package_sections", lambda: iter(sections))
        for function in cached:
            function.cache_clear()

    yield bring
    monkeypatch.undo()
    for function in cached:
        function.cache_clear()


def test_a_section_is_set_by_every_layer(bring: Bring, tmp_path: Path) -> None:
    bring(("words", "toy", ToySettings))
    file = tmp_path / "config.yaml"
    file.write_text("toy: {letters: 2}")
    by_file = load(*SERVER, config=file)
    assert (by_file.settings.of(ToySettings).letters, by_file.sources["toy.letters"]) == (2, str(file))
    by_variable = load(*SERVER, config=file, environ={"UNTOLD_TOY__LETTERS": "3"})
    assert by_variable.settings.of(ToySettings).letters == 3
    assert load(*SERVER, "toy.letters=4", environ={"UNTOLD_TOY__LETTERS": "3"}).settings.of(ToySettings).letters == 4
    assert load(*SERVER).settings.of(ToySettings).letters == 1


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("toy.leters=4", "the nearest is toy.letters"),
        ("toy.letters=0", "must be an integer >= 1"),
        ("toy=4", "mapping"),
    ],
)
def test_an_error_in_a_section_looks_like_an_error_in_a_built_in_section(
    bring: Bring, override: str, told: str
) -> None:
    bring(("words", "toy", ToySettings))
    with pytest.raises(SettingsError, match=told):
        load(*SERVER, override)


def test_a_section_is_listed_and_its_variables_are_known(bring: Bring) -> None:
    assert unknown_variables({"UNTOLD_TOY__LETTERS": "1"})
    bring(("words", "toy", ToySettings))
    listed = ("toy.letters", "an integer >= 1", "1", "Fewest letters of a word that counts")
    assert listed in [row[:4] for row in describe()]
    assert unknown_variables({"UNTOLD_TOY__LETTERS": "1"}) == []


def test_a_section_is_part_of_the_identity_of_an_output(bring: Bring) -> None:
    bring(("words", "toy", ToySettings))
    (one, two) = (result_settings(load(*SERVER, f"toy.letters={value}").settings, []) for value in (1, 2))
    assert (one.pop("toy"), two.pop("toy"), one == two) == ({"letters": 1}, {"letters": 2}, True)


def test_the_check_of_spark_reads_a_section(bring: Bring, monkeypatch: pytest.MonkeyPatch) -> None:
    """`untold doctor` passes the settings to the process that starts Spark."""
    bring(("words", "toy", ToySettings))
    settings = load(*SERVER, "toy.letters=3").settings
    opened: list[Settings] = []

    def stop(settings: Settings, _: str) -> None:
        opened.append(settings)
        raise SettingsError("stopped")

    monkeypatch.setattr(session, "open_session", stop)
    with pytest.raises(SettingsError, match="stopped"):
        doctor.PROBES["Spark"]({"settings": settings.model_dump(mode="json"), "places": {}, "files": []})
    assert opened == [settings]


def test_metrics_of_one_package_share_a_section(bring: Bring) -> None:
    bring(("words", "toy", ToySettings), ("letters", "toy", ToySettings))
    assert load(*SERVER, "toy.letters=4").settings.of(ToySettings).letters == 4


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ([("words", "llm", ToySettings)], r"metric words: Untold already has settings llm\.\*"),
        ([("a", "toy", ToySettings), ("b", "toy", OtherSettings)], r"metric b: a already has settings toy\.\*"),
    ],
)
def test_a_section_whose_name_is_taken_is_refused(
    bring: Bring, sections: list[tuple[str, str, type[Section]]], told: str
) -> None:
    bring(*sections)
    with pytest.raises(SettingsError, match=told):
        settings_model()


def test_settings_made_without_the_package_have_its_defaults() -> None:
    assert Settings().of(ToySettings) == ToySettings()
