from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, TemplateError, UndefinedError
from jinja2.exceptions import SecurityError

from untold.udfs.llm.templates import PromptError, check_variables, compile_prompt, split_turns, try_prompt

TURNS = (
    "notes for people\n\n=== system\n\n  Be brief.\n\n=== user\nQuery: {{ query }}\n\n"
    "=== assistant\n\nOne\n\nTwo\n \n=== user \t\nEnd\n"
)


def content(source: str, **variables: object) -> str:
    """Return the only message of a template without turn lines."""
    (message,) = compile_prompt(source).messages(variables)
    return message["content"]


def test_turn_lines_open_turns_in_order() -> None:
    messages = compile_prompt(TURNS).messages({"query": "Who?"})
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]


def test_text_before_the_first_turn_is_ignored() -> None:
    assert compile_prompt(TURNS).messages({"query": "Who?"})[0] == {"role": "system", "content": "  Be brief."}


def test_blank_lines_are_only_stripped_at_the_ends_of_a_turn() -> None:
    assert compile_prompt(TURNS).messages({"query": "Who?"})[2]["content"] == "One\n\nTwo"


def test_a_source_without_turn_lines_is_one_user_turn() -> None:
    assert compile_prompt("\n\n Hello {{ query }}\n\n").messages({"query": "you"}) == [
        {"role": "user", "content": " Hello you"}
    ]


def test_line_ends_of_another_system_change_nothing() -> None:
    variables = {"query": "Who?"}
    assert compile_prompt(TURNS.replace("\n", "\r\n")).messages(variables) == compile_prompt(TURNS).messages(variables)


@pytest.mark.parametrize(
    "line", ["=== User", " === user", "== user", "=== user:", "===user", "=== tool", "=== user x", "x === user"]
)
def test_only_the_exact_line_opens_a_turn(line: str) -> None:
    assert [role for role, *_ in split_turns(f"{line}\ntext")] == ["user"]
    assert split_turns(f"{line}\ntext")[0][1].endswith("text")
    assert split_turns(f"=== system\nA\n{line}\nB") == [("system", f"A\n{line}\nB", 2)]


def test_an_empty_turn_is_kept() -> None:
    assert split_turns("=== system\n=== user\nx") == [("system", "", 1), ("user", "x", 3)]


BLOCKS = {
    "if": "=== system\n{% if query %}a\n=== user\nb{% endif %}",
    "for": "=== system\n{% for c in contexts %}\n=== user\n{{ c }}\n{% endfor %}",
    "raw": "=== system\n{% raw %}\n=== user\n{% endraw %}",
    "comment": "=== system\n{# a\n=== user\nb #}",
    "expression": "=== system\n{{ query\n=== user\n}}",
    "set": "=== system\n{% set x %}\n=== user\n{% endset %}",
}


@pytest.mark.parametrize("source", BLOCKS.values(), ids=BLOCKS.keys())
def test_no_block_spans_a_turn_line(source: str) -> None:
    with pytest.raises(PromptError, match=r"^s line \d: "):
        compile_prompt(source, name="s")


FOREIGN = {
    "include": "{% include 'other' %}",
    "include in a block": "{% if query %}{% include 'other' ignore missing %}{% endif %}",
    "import": "{% import 'other' as other %}",
    "from": "{% from 'other' import macro %}",
    "extends": "{% extends 'other' %}",
}


@pytest.mark.parametrize("source", FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_templates_cannot_include_other_templates(source: str, api: str) -> None:
    with pytest.raises(PromptError, match=r"^s line 1: a template cannot include another"):
        compile_prompt(source, api=api, name="s")


def fill_in(source: str, variables: dict[str, object]) -> None:
    prompt = compile_prompt(source, name="a.jinja")
    check_variables(source, tuple(variables), name="a.jinja")
    try_prompt(prompt, variables, "a.jinja")


@pytest.mark.parametrize("before", ["", "=== system\nBe brief.\n\n", "\n\n=== system\r\n\r\n\r\nBe brief.\r\n\r\n"])
@pytest.mark.parametrize("blank", ["", "\n\n"])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{{ broken", "unexpected end of template"),
        ("{{ query | no_such_filter }}", "No filter named 'no_such_filter'"),
        ("{{ quary }}", "unknown variable quary. The stage has query, contexts"),
        ("{{ query.text }}", "'str object' has no attribute 'text'"),
        ("{% for one in contexts %}{{ one.text }}{% endfor %}", "'str object' has no attribute 'text'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_an_error_has_the_line_of_the_file(before: str, blank: str, wrong: str, said: str) -> None:
    source = f"{before}=== user\n{blank}fine\n{{{{ query }}}}\n{wrong}"
    with pytest.raises(PromptError) as raised:
        fill_in(source, {"query": "Who?", "contexts": ["one"]})
    assert str(raised.value).startswith(f"a.jinja line {source.count(chr(10)) + 1}: {said}")


def test_an_unknown_filter_is_an_error_at_once() -> None:
    with pytest.raises(PromptError, match="no_such_filter"):
        compile_prompt("{{ query | no_such_filter }}")


def test_a_missing_variable_is_an_error_not_an_empty_text() -> None:
    with pytest.raises(UndefinedError, match="query"):
        content("{{ query }}")


@pytest.mark.parametrize(
    "source", ["{% if query %}x{% endif %}", "{{ query.text }}", "{% for q in query %}{% endfor %}"]
)
def test_a_missing_variable_is_an_error_wherever_it_stands(source: str) -> None:
    with pytest.raises(UndefinedError):
        content(source)


def test_nothing_is_escaped() -> None:
    assert content("{{ query }}", query="<b> & \"'") == "<b> & \"'"


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_comment_may_come_first(api: str) -> None:
    assert compile_prompt("{# names: Osk -#}\n{{ query }}", api=api).turns[0][1].render(query="q") == "q"


PIECES = ("{# said #}", "{#- said -#}", "{% raw %}{{ query }}{% endraw %}", "{{ query }}", "{{- query -}}", "{{ 'q' }}")


@given(st.lists(st.sampled_from((*PIECES, "Be brief.", "\n", " ", "{% set q = 1 %}")), max_size=6))
def test_a_template_equals_the_output_of_jinja_without_any_variable(pieces: list[str]) -> None:
    # The template does not include the blank lines at its ends
    source = f"<{''.join(pieces)}>"
    expected = Environment(keep_trailing_newline=True).from_string(source).render(query="Who?")
    assert compile_prompt(source, api="completions").text({"query": "Who?"}) == expected


def test_tojson_writes_json() -> None:
    texts = ['a "quoted" <b>', "two\nlines", "日本 😀"]
    assert json.loads(content("{{ contexts | tojson }}", contexts=texts)) == texts


def test_lists_are_numbered_from_one() -> None:
    source = "{% for c in contexts %}{{ loop.index }}: {{ c }}\n{% endfor %}"
    assert content(source, contexts=["a", "b"]) == "1: a\n2: b\n"


@given(
    st.sampled_from(["=== system", "\n=== system\n", "\r\n=== user\r\n", "{{ 7 * 7 }}", "{% include 'x' %}"]), st.text()
)
def test_no_text_in_a_variable_opens_a_turn_or_is_a_template(hostile: str, text: str) -> None:
    value = f"{text}\n{hostile}\n{text}"
    messages = compile_prompt("=== system\nS\n=== user\n{{ query }}").messages({"query": value})
    assert messages == [{"role": "system", "content": "S"}, {"role": "user", "content": value}]


ESCAPES = {
    "class": "{{ query.__class__ }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "attr filter": "{{ query | attr('__class__') }}",
    "format": "{{ '{0.__class__}'.format(query) }}",
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES.keys())
def test_templates_remain_in_their_sandbox(source: str) -> None:
    with pytest.raises((SecurityError, UndefinedError)):
        content(source, query="q")


def test_a_template_changes_no_variable() -> None:
    contexts = ["a"]
    with pytest.raises(TemplateError):
        content("{{ contexts.append('b') }}", contexts=contexts)
    assert contexts == ["a"]


def test_a_template_cannot_count_for_ever() -> None:
    with pytest.raises(OverflowError):
        content("{% for i in range(1000000000) %}x{% endfor %}")


def test_check_variables_names_unknown_variables() -> None:
    with pytest.raises(PromptError, match=r"s line 2: unknown variable answer, quary\. The stage has query, text"):
        check_variables("=== system\n{{ quary }}\n=== user\n{{ answer }}{{ text }}", ("query", "text"), name="s")


def test_check_variables_permits_declared_variables() -> None:
    check_variables(
        "{% for c in contexts %}{{ loop.index }}{{ c }}{% endfor %}{% set x = 1 %}{{ x }}", ("contexts",), name="s"
    )


def test_text_before_the_first_turn_is_not_checked() -> None:
    check_variables("about {{ placeholders }}\n=== user\n{{ query }}", ("query",), name="s")


def test_a_broken_note_before_the_first_turn_does_no_harm() -> None:
    source = "Write {{ and {% as in Jinja.\n=== user\n{{ query }}"
    assert content(source, query="q") == "q"
    check_variables(source, ("query",), name="s")


def test_a_variable_of_one_turn_is_unknown_in_the_next() -> None:
    with pytest.raises(PromptError, match="unknown variable x"):
        check_variables("=== system\n{% set x = 1 %}\n=== user\n{{ x }}", ("query",), name="s")


def test_check_variables_allows_the_functions_of_the_language() -> None:
    check_variables("{% for i in range(3) %}{{ i }}{% endfor %}", ("query",), name="s")


def test_a_plain_completion_is_one_text_without_turns() -> None:
    prompt = compile_prompt("\nA\n=== user\n{{ query }}\n\n", api="completions")
    assert prompt.text({"query": "q"}) == "A\n=== user\nq"


def test_characters_counts_the_bytes_of_all_turns() -> None:
    assert compile_prompt("=== system\nä\n=== user\n{{ query }}").characters({"query": "日本"}) == 2 + 6
