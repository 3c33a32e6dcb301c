import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.config.errors import ConfigError
from epp.config.loader import load_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("off", False),
        ("y", True),
        ("~", None),
        ("010", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("-0", 0),
        ("+7", 7),
        ("1_000", 1000),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("9007199254740993", 9007199254740993),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("'1'", "1"),
        ('"yes"', "yes"),
        ("!!str 5", "5"),
        ('!!int "5"', 5),
        ("10Gi", "10Gi"),
        ("5s", "5s"),
        ("089", 89.0),
    ],
)
def test_scalars_are_read_as_kubernetes_reads_them(text: str, value: Any) -> None:
    got = load_document(f"a: {text}", "f").value["a"]
    assert got == value
    assert type(got) is type(value)


def test_lines_are_those_of_keys_and_items() -> None:
    document = load_document("a:\n- b: 1\n  c:\n    d: 2\n- 3\n", "f")
    assert document.line(("a",)) == 1
    assert document.line(("a", 0, "c")) == 3
    assert document.line(("a", 0, "c", "d")) == 4
    assert document.line(("a", 1)) == 5
    assert document.line(("a", 0, "c", "absent", "deeper")) == 3
    assert document.line(("absent", "deeper")) is None


def test_json_may_be_indented_with_tabs() -> None:
    assert load_document('{\n\t"a": [1,\n\t\t"x\\ty"]\n}', "f").value == {"a": [1, "x\ty"]}


def test_merge_keys_fill_in_what_is_not_said() -> None:
    document = load_document("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n", "f")
    assert document.value["d"] == {"b": 1, "c": 3}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", None, "the configuration is empty"),
        ("a: 1\nb: 2\na: 3", 3, "duplicate key 'a', first on line 1"),
        ("a:\n- {b: 1, b: 2}", 2, "duplicate key 'b', first on line 2"),
        ("a: 1\n b: 2", 2, "not valid YAML"),
        ("a: .nan", 1, ".nan is not a number that JSON can say"),
        ("a: 1\nb: !!python/object:os.system x", 2, 'the tag "tag:yaml.org,2002:python/object:os.system"'),
        ("? [a]\n: 1", 1, "a key must be a plain word"),
        ("a: 1\n---\nb: 2", 2, "not valid YAML: expected a single document"),
        ("a: &a [*a]", 1, "nested too deeply"),
        ("&a {<<: *a}", 1, "nested too deeply"),
        ("a: \x00", None, "not valid YAML: special characters"),
        ("[" * 1500, None, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_document(text, "f")
    (problem,) = caught.value.problems
    assert problem.line == line
    assert problem.message.startswith(message)
    assert "\n" not in str(problem)


def test_aliases_of_aliases_cannot_eat_the_memory() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="too many values"):
        load_document("\n".join(lines), "f")


plain_text = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029"), max_size=8
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | plain_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=values, indent=st.sampled_from([None, 2, "\t"]))
def test_json_means_the_same_here_as_anywhere(value: Any, indent: Any) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=False)
    assert load_document(text, "f").value == json.loads(text)
