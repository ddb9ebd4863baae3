"""Numbers that go through the ring as they are come out as the text they would have been."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.model.packed_metrics import AT_EVENT, AT_STEP, MARK, as_json, packer

MAX_BYTES = 244
NUMBERS = st.floats() | st.integers(-(2**63), 2**63)


def packed(kind, moment, unix_ns, values):
    names = json.dumps(list(values), separators=(",", ":"), ensure_ascii=False).encode()
    pack = packer(names, len(values), MAX_BYTES)
    if pack is None:
        return None
    return pack(MARK, kind, len(values), moment, unix_ns, *values.values(), names)


@given(
    st.sampled_from((AT_EVENT, AT_STEP)),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**62),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), NUMBERS),
)
def test_every_number_comes_out_as_it_went_in(kind, moment, unix_ns, values):
    payload = packed(kind, moment, unix_ns, values)
    if payload is None:
        return
    message = json.loads(as_json(payload))
    said = message.pop("values")
    assert list(said) == list(values)
    for name, value in values.items():
        if math.isfinite(value):
            assert type(said[name]) is float and said[name] == float(value)
        else:
            assert said[name] == str(float(value))
    where = "step" if kind == AT_STEP else "at"
    assert message == {"kind": "metrics", where: moment, "unix_ns": unix_ns}


def test_the_moment_comes_right_behind_the_kind():
    """Whoever reads the ring finds it there."""
    payload = packed(AT_EVENT, 12, 5, {"loss": 0.5})
    assert as_json(payload) == b'{"kind":"metrics","at":12,"unix_ns":5,"values":{"loss":0.5}}'


def test_what_does_not_fit_is_not_packed():
    assert packed(AT_STEP, 1, 1, {f"name {number}": 1.0 for number in range(30)}) is None


@given(st.binary(max_size=80), st.integers(0, 60), st.booleans())
def test_damage_is_passed_on_as_it_is_or_read_as_something_else(noise, place, is_packed):
    payload = packed(AT_STEP, 7, 8, {"a": 1.0, "b": 2.0}) if is_packed else MARK
    damaged = payload[:place] + noise + payload[place + len(noise) :]
    text = as_json(damaged)
    if text is not damaged:
        assert json.loads(text)["kind"] == "metrics"


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"kind":"params","values":{}}', MARK])
def test_any_other_message_stays_as_it_is(payload):
    assert as_json(payload) is payload
