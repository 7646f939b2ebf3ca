"""Test the reading of settings: defaults, layers, files, variables and `--set`, and the text of each error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.object_store import BUCKET, ObjectStore
from tests.jobs.settings.cases import KEY, SERVER, load, problems, value_of, write
from untold.jobs.cli.main import main
from untold.jobs.settings.fields import Section
from untold.jobs.settings.layers import known_settings, read_systems, read_yaml, unknown_variables
from untold.jobs.settings.loading import describe
from untold.jobs.settings.model import (
    Settings,
    SettingsError,
    StageSettings,
)


def test_default_file_states_every_default_of_the_models() -> None:
    settings = load(*SERVER).settings
    llm = settings.llm.model_copy(update={"base_url": None, "model": None})
    assert settings.model_copy(update={"llm": llm}) == Settings()


def test_default_file_names_every_setting() -> None:
    sources = load(*SERVER).sources
    assert {key for key in known_settings() if not key.startswith("stages.")} <= sources.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llm.max_attempts", 4),
        ("llm.deadline_seconds", 600),
        ("llm.outage_minutes", 10),
        ("llm.api_key_env", None),
        ("statistics.seed", 0),
        ("thresholds.relevance", 3.5),
        ("thresholds.confidence", 2),
        ("nli.unit_types", ("Fact", "Claim")),
        ("nli.skip_implied", False),
        ("nli.max_pairs_per_sample", None),
        ("qa.quantity_tool", "tool"),
        ("qa.questions", "all"),
        ("graph.method", "auto"),
        ("graph.max_edges_in_task", 1_000_000),
        ("graph.jar", None),
        ("summarise_contexts", True),
        ("fail_on_error", "any"),
    ],
)
def test_default(key: str, value: object) -> None:
    assert value_of(load(*SERVER).settings, key) == value


def test_later_layers_win(tmp_path: Path) -> None:
    config = write(tmp_path, "llm: {model: file, max_concurrency: 7, max_attempts: 2, timeout_seconds: 3}")
    environ = {"UNTOLD_LLM__MAX_CONCURRENCY": "8", "UNTOLD_LLM__MAX_ATTEMPTS": "5"}
    resolved = load("llm.max_attempts=6", config=config, environ=environ, endpoint="vllm")
    llm = resolved.settings.llm
    assert (llm.base_url, llm.model, llm.max_concurrency, llm.max_attempts) == (
        "http://localhost:8000/v1",
        "file",
        8,
        6,
    )
    assert {
        key: resolved.sources[f"llm.{key}"] for key in ("base_url", "model", "max_concurrency", "max_attempts")
    } == {
        "base_url": "conf/endpoints/vllm.yaml",
        "model": str(config),
        "max_concurrency": "UNTOLD_LLM__MAX_CONCURRENCY",
        "max_attempts": "--set",
    }
    assert resolved.sources["llm.top_p"] == "conf/default.yaml"


def test_preset_is_chosen_from_the_final_endpoint(tmp_path: Path) -> None:
    config = write(tmp_path, "llm.endpoint: openai\nllm.model: m")
    resolved = load(config=config, environ={"UNTOLD_LLM__ENDPOINT": "ollama"}, endpoint="vllm")
    assert resolved.settings.llm.base_url == "http://localhost:8000/v1"
    assert resolved.sources["llm.endpoint"] == "--endpoint"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("llm.model=123", "llm.model", "123"),
        ("llm.model=4.10", "llm.model", "4.10"),
        ("llm.model='x y'", "llm.model", "x y"),
        ("llm.model=a: [b", "llm.model", "a: [b"),
        ("completion_store=null", "completion_store", None),
        ("completion_store=", "completion_store", None),
        ("completion_store=s3://bucket/x=y", "completion_store", "s3://bucket/x=y"),
        ("storage.options.s3.region=eu", "storage.options", {"s3": {"region": "eu"}}),
        ("storage.options={gs: {anonymous: true}}", "storage.options", {"gs": {"anonymous": True}}),
        ("storage.options.s3.secret_key_env=MINE", "storage.options", {"s3": {"secret_key_env": "MINE"}}),
        ("llm.temperature=1e-1", "llm.temperature", 0.1),
        ("llm.temperature=null", "llm.temperature", None),
        ("summarise_contexts=false", "summarise_contexts", False),
        ("nli.unit_types=[Fact]", "nli.unit_types", ("Fact",)),
        ("qa.quantity_tool=none", "qa.quantity_tool", "none"),
        ('llm={"max_attempts": 2}', "llm.max_attempts", 2),
        ("llm.extra_body.reasoning_effort=low", "llm.extra_body", {"reasoning_effort": "low"}),
        ("llm.extra_body.a.b=false", "llm.extra_body", {"a": {"b": False}}),
        ("llm.extra_body.logprobs=false", "llm.extra_body", {"logprobs": False}),
        ('llm.extra_body={"seed": 1, "x": null}', "llm.extra_body", {"seed": 1}),
        ("spark.conf.spark.sql.shuffle.partitions=4", "spark.conf", {"spark.sql.shuffle.partitions": "4"}),
        ("spark.conf={spark.ui.enabled: true}", "spark.conf", {"spark.ui.enabled": "true"}),
        ("spark.master=local[2]", "spark.master", "local[2]"),
        ("llm.base_url=http://h/v1/", "llm.base_url", "http://h/v1"),
        ("storage.packages=auto", "storage.packages", "auto"),
        ("storage.packages=[s3]", "storage.packages", ["s3"]),
        ("storage.packages=[]", "storage.packages", []),
    ],
)
def test_set_reads_values_by_the_type_of_the_setting(override: str, key: str, value: object) -> None:
    assert value_of(load(*SERVER, override).settings, key) == value


@pytest.mark.parametrize(
    ("overrides", "value"),
    [
        (["fail_on_error=any"], "any"),
        (["fail_on_error=none"], "none"),
        (["fail_on_error.share=1"], {"share": 1}),
        (["fail_on_error.share=0.05", "fail_on_error.count=3"], {"share": 0.05, "count": 3}),
        (["fail_on_error={count: 0}"], {"count": 0}),
        (["fail_on_error=none", "fail_on_error.count=2"], {"count": 2}),
        (["fail_on_error.count=2", "fail_on_error=none"], "none"),
    ],
)
def test_fail_on_error_is_a_word_or_bounds(overrides: list[str], value: object) -> None:
    settings = load(*SERVER, *overrides).settings
    assert settings.fail_on_error == value
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_repeated_set_lets_the_last_win() -> None:
    assert load(*SERVER, "llm.model=a", "llm.model=b").settings.llm.model == "b"


def test_environment_names_settings_in_capitals() -> None:
    environ = {
        "UNTOLD_COMPLETION_STORE": "s",
        "UNTOLD_STAGES__EVALUATE_COVERAGE__MAX_TOKENS": "77",
        "UNTOLD_SPARK__CONF": '{"spark.sql.ansi.enabled": false}',
        "UNTOLD_LLM__EXTRA_BODY__SEED": "3",
        "UNTOLD_GRAPHFRAMES_JAR": "/x.jar",
        "UNTOLD_DATA": "/data",
        "UNTOLD_RUN": "results",
        "PATH": "/bin",
    }
    settings = load(*SERVER, environ=environ).settings
    assert settings.completion_store == "s"
    assert settings.stages["evaluate_coverage"].max_tokens == 77
    assert settings.spark.conf == {"spark.sql.ansi.enabled": "false"}
    assert settings.llm.extra_body == {"seed": 3}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("UNTOLD_LLM_MODEL", "UNTOLD_LLM__MODEL"),
        ("UNTOLD_LLM__MODLE", "UNTOLD_LLM__MODEL"),
        ("UNTOLD_MODEL", "UNTOLD_LLM__MODEL"),
        ("UNTOLD_LLM__ANYTHING_ELSE", "UNTOLD_LLM__"),
        ("UNTOLD_llm__model", "UNTOLD_LLM__MODEL"),
        ("UNTOLD_SPARK__CONF__SPARK__UI__ENABLED", "UNTOLD_SPARK__CONF a mapping"),
    ],
)
def test_unknown_variable_is_an_error_with_the_nearest(variable: str, expected: str) -> None:
    (line,) = problems(*SERVER, environ={variable: "true"})
    assert line.startswith(variable)
    assert expected in line
    assert unknown_variables({variable: "true"}) == []


@pytest.mark.parametrize("variable", ["UNTOLD_HOME", "UNTOLD_TEAM", "UNTOLD_TOKEN", "UNTOLD_WEEKLY__FOLDER"])
def test_a_variable_like_no_setting_is_ignored_with_a_warning(variable: str) -> None:
    environ = {variable: "sk-1234567890abcdef", "UNTOLD_RUN": "results"}
    assert load(*SERVER, environ=environ) == load(*SERVER)
    ignored = "no setting has a name like this; the variable is ignored"
    assert unknown_variables(environ) == [f"{variable} (environment): {ignored}"]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("llm.modle", "llm.model"),
        ("model", "llm.model"),
        ("base_url", "llm.base_url"),
        ("treshold.relevance", "thresholds.relevance"),
        ("stages.evaluate_coverag.max_tokens", "stages.evaluate_coverage.max_tokens"),
        ("stages.evaluate_coverage.max_token", "stages.evaluate_coverage.max_tokens"),
        ("budget.max_calls.x", "budget.max_calls"),
    ],
)
def test_unknown_key_is_an_error_with_the_nearest(key: str, nearest: str) -> None:
    (line,) = problems(*SERVER, f"{key}=3")
    assert line.startswith(f"{key}=3 (--set): no such setting; the nearest is {nearest} (")


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("llm.max_attempts=0", "an integer >= 1"),
        ("llm.max_attempts=true", "an integer >= 1"),
        ("llm.max_attempts=2.5", "an integer >= 1"),
        ("llm.max_attempts=four", "an integer >= 1"),
        ("llm.max_attempts=null", "an integer >= 1"),
        ("llm.temperature=-1", "a number >= 0 or null"),
        ("llm.temperature=.nan", "a number >= 0 or null"),
        ("llm.timeout_seconds=.inf", "a number > 0"),
        ("llm.top_p=1.5", "a number > 0 and <= 1 or null"),
        ("llm.api=chats", "chat | completions"),
        ("llm.extra_body=low", "a mapping"),
        ("llm.extra_body.temperature=1", "a mapping without temperature"),
        ("llm.extra_body.logprobs=true", "a mapping without logprobs"),
        ("llm.extra_body.x=.nan", "finite numbers"),
        ("llm.base_url=h/v1", "an http:// or https:// address"),
        ("summarise_contexts=yes", "true or false"),
        ("fail_on_error=true", "any | none | share (from 0 to 1) and count (an integer >= 0)"),
        ("fail_on_error.share=1.5", "share (from 0 to 1)"),
        ("fail_on_error.count=-1", "count (an integer >= 0)"),
        ("fail_on_error.count=1.5", "count (an integer >= 0)"),
        ("fail_on_error.portion=1", "share (from 0 to 1)"),
        ("nli.unit_types=[Fat]", "Fact | Claim"),
        ("qa.questions=some", "all | contexts"),
        ("graph.method=scipy", "auto | local | graphframes"),
        ("stages.evaluate_coverage.model=null", "leave the key out"),
        ("budget=3", "a mapping of settings"),
        ("budget.max_calls=[1", "an integer >= 0 or null"),
    ],
)
def test_a_wrong_value_is_an_error_with_the_allowed_values(override: str, allowed: str) -> None:
    (line,) = problems(*SERVER, override)
    assert override.startswith(re.split("[= ]", line)[0])
    assert "(--set)" in line
    assert allowed in line


def test_all_problems_are_reported_at_once_with_their_layers(tmp_path: Path) -> None:
    config = write(tmp_path, "llm:\n  modl: x\n  max_attempts: 0\n")
    lines = problems("thresholds.relevance=9", "zzz", config=config, environ={"UNTOLD_STOR": "x"}, endpoint="opnai")
    assert len(lines) == 6
    for part in (
        "llm.endpoint=opnai (--endpoint): must be one of anthropic, judge, local, ollama, openai, openai-reasoning, ",
        f"llm.modl=x ({config})",
        f"llm.max_attempts=0 ({config}): must be an integer >= 1",
        "UNTOLD_STOR=x",
        "zzz (--set): --set needs KEY=VALUE",
        "thresholds.relevance=9 (--set)",
    ):
        assert sum(part in line for line in lines) == 1


def test_file_takes_nested_and_dotted_keys_and_keeps_text_as_written(tmp_path: Path) -> None:
    text = """
llm.base_url: http://h/v1
llm:
  model: 4.10
stages:
  evaluate_coverage.temperature: null
stages.rate_relevance: {max_tokens: 9}
spark:
  conf: {spark.executor.cores: 2, spark.ui.enabled: false}
completion_store: 2026-01-01
"""
    settings = load(config=write(tmp_path, text)).settings
    assert (settings.llm.base_url, settings.llm.model) == ("http://h/v1", "4.10")
    assert settings.stages["evaluate_coverage"].model_fields_set == {"temperature"}
    assert settings.stages["rate_relevance"].max_tokens == 9
    assert settings.spark.conf == {"spark.executor.cores": "2", "spark.ui.enabled": "false"}
    assert settings.completion_store == "2026-01-01"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("llm:\n  model: [a\n", "line 3: not valid YAML"),
        ("llm:\n  model: a\n  model: b\n", "PATH line 3: cannot be read: the key model is given twice"),
        ("llm:\n  model: a\nllm.model: b\n", "llm.model (PATH): set twice"),
        ("llm:\n  extra_body: {a: {b: 1, b: 2}}\n", "PATH line 2: cannot be read: the key b is given twice"),
        ("- a\n", "PATH: the settings file must be a mapping"),
        ("llm: &x {extra_body: *x}\n", "nested more than 40 levels deep"),
        ("completion_store: !!python/object:os.system x\n", "line 1: not valid YAML"),
        ("completion_store: \x00", "characters that YAML does not allow"),
    ],
)
def test_broken_file_is_an_error_with_its_line(tmp_path: Path, text: str, part: str) -> None:
    config = write(tmp_path, text)
    (line,) = problems(*SERVER, config=config)
    assert str(config) in line
    assert part.replace("PATH", str(config)) in line


LAYERS = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
BOMB = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]", *LAYERS])
TOO_LARGE = {
    "an alias bomb": (BOMB, "cannot be read: more than 10,000 values"),
    "a bomb of merged mappings": (BOMB.replace("[", "{? [").replace("]", "] : 1}"), "more than 10,000 values"),
    "deep nesting": ("llm: " + "[" * 100_000, "cannot be read: nested more than 40 levels deep"),
    "deep aliases": ("\n".join(["a0: &a0 x", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 99))]), "40 levels deep"),
    "many values": ("llm: [" + "a," * 50_000 + "]", "cannot be read: more than 10,000 values"),
    "a long text": ("#" * 300_000, "cannot be read: it has more than 262,144 characters"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_too_large_settings_are_one_line(tmp_path: Path, name: str) -> None:
    text, part = TOO_LARGE[name]
    config = write(tmp_path, text)
    (line,) = problems(*SERVER, config=config)
    assert line.startswith(str(config))
    assert part in line
    assert [layer.problems for layer in read_systems(str(config)).values()] == [[line]]


def test_an_alias_bomb_in_an_option_is_one_line() -> None:
    bomb = "{" + BOMB.replace("\n", ", ") + "}"
    (line,) = problems(*SERVER, f"llm.extra_body={bomb}")
    assert line.endswith("(--set): cannot be read: more than 10,000 values, too many for settings")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    (line,) = problems(*SERVER, config=tmp_path / "none.yaml")
    assert "none.yaml cannot be read (No such file" in line


def test_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load(*SERVER, config=write(tmp_path, "# nothing\n")).settings == load(*SERVER).settings


@pytest.mark.parametrize(
    "overrides",
    [
        (f"llm.api_key_env={KEY}",),
        ("llm.api_key_env=sk_abcdefgh0123",),
        (f"llm.api_key={KEY}",),
        ("llm.api_key=abcdefgh0123",),
        (f"llm.modl={KEY}",),
        (f"{KEY}=abcdefgh0123",),
        (KEY,),
        (f"llm.max_attempts={KEY}",),
        ("llm.max_attempts=Bearer abcdefgh0123",),
        ("llm.base_url=http://user:abcdefgh0123@h/v1",),
        ("llm.base_url=http://h/v1?key=abcdefgh0123",),
        ('llm.extra_body={"model": "abcdefgh0123"}',),
        ('llm.max_attempts=[{"a": "abcdefgh0123"}]',),
        ("spark.conf={spark.hadoop.fs.s3a.secret.key: [abcdefgh0123]}",),
        ("storage.options.s3.secret_key=abcdefgh0123",),
        (f"storage.options.s3.secret_key_env={KEY}",),
        (f"llm.extra_body=*{KEY}",),
    ],
)
def test_no_message_shows_a_secret(overrides: Sequence[str], tmp_path: Path) -> None:
    name, _, value = overrides[0].partition("=")
    config = write(tmp_path, f"{name}: {value}")
    variable = {"UNTOLD_" + name.upper().replace(".", "__"): value}
    for lines in (
        problems("llm.model=m", *overrides),
        problems(*SERVER, "zzz.api_key=1", config=config),
        problems(*SERVER, "zzz.api_key=1", environ=variable),
    ):
        assert "abcdefgh" not in "\n".join(lines).lower()


def test_api_key_as_name_of_its_variable_is_refused_by_name() -> None:
    (line,) = problems(*SERVER, f"llm.api_key_env={KEY}")
    assert line == "llm.api_key_env (--set): must be the name of an environment variable, not the key itself"


def test_a_key_in_the_options_of_storage_must_be_a_variable() -> None:
    (line,) = problems(*SERVER, "storage.options.s3.secret_key=abc")
    assert line == (
        "storage.options (--set): must be without secret_key: give secret_key_env, the name of an environment variable"
    )
    (line,) = problems(*SERVER, "storage.options.ftp.user=me")
    assert line == "storage.options (--set): must be a mapping by s3, gs, abfss"


def test_every_setting_is_described() -> None:
    rows = describe()
    assert all(key and kind and default and text for key, kind, default, text in rows)
    assert ("llm.max_attempts", "an integer >= 1", "4") in [row[:3] for row in rows]
    assert [key for key, *_ in rows if key.startswith("stages.")] == [
        f"stages.<stage>.{name}" for name in StageSettings.model_fields
    ]


def test_an_advanced_setting_is_a_field_and_is_listed_separately() -> None:
    usual, advanced = describe(advanced=False), describe(advanced=True)
    assert sorted(usual + advanced) == sorted(describe())
    keys = [key for key, *_ in advanced]
    assert {"index.nprobe", "graph.max_edges_in_task", "thresholds.relevance"} <= set(keys)
    assert {"llm.model", "knowledge.source", "icat.beta"}.isdisjoint(keys)
    sections = [section for _, section in Settings() if isinstance(section, Section)]
    assert all(hasattr(section, name) for section in sections for name in section.ADVANCED | section.NO_RESULT)


awkward = ["null", "true", "1", "-1", "1.5", "1e999", "[", "{a: 1}", "{a: {b: null}}", "- x", "*a"]
words = st.text() | st.sampled_from(awkward)


KEYS = (*known_settings(), "llm", "stages", "spark.conf.a.b", "llm.extra_body.a.b", "llm.extra_body.", "")


@pytest.mark.gate
@given(st.sampled_from(KEYS), words)
def test_any_override_is_accepted_or_refused(key: str, text: str) -> None:
    try:
        settings = load(*SERVER, f"{key}={text}").settings
    except SettingsError:
        return
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


@given(st.text() | st.lists(words).map("\n".join))
def test_any_file_text_is_read_or_refused(text: str) -> None:
    layer = read_yaml(text, "file")
    assert layer.problems or all(one.key in known_settings() for one in layer.assignments)


def test_settings_and_templates_are_read_from_an_object_store(
    capsys: pytest.CaptureFixture[str], object_store: ObjectStore
) -> None:
    object_store.put("a b%20/settings.yaml", f"prompts_dir: s3a://{BUCKET}/a b%20/prompts".encode())
    object_store.put("a b%20/prompts/evaluate_coverage.jinja", b"\xef\xbb\xbfAn own template of {{ query }}")
    assert main(["prompts", "evaluate_coverage", "--config", f"s3://{BUCKET}/a b%20/settings.yaml"]) == 0
    assert "An own template of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["nli.audit_share=0", "nli.max_miss_rate=0.05"],
            "nli.max_miss_rate=0.05 (--set): must be null with nli.audit_share=0",
        ),
        (
            ["nli.classifier_threshold=0.9"],
            "nli.classifier_threshold=0.9 (--set): must be null without nli.classifier or nli.classifier_url",
        ),
        (
            ["nli.classifier=judge", "nli.classifier_url=http://h/predict"],
            "nli.classifier_url=http://h/predict (--set): must be null with nli.classifier",
        ),
        (["nli.classifier_url=judge"], "nli.classifier_url=judge (--set): must be an http:// or https:// address"),
    ],
)
def test_what_no_classifier_or_audit_can_meet_is_refused_in_a_line(given: list[str], said: str) -> None:
    (line,) = problems(*SERVER, *given)
    assert line.startswith(said)
