"""Bodies of requests become messages by their media type, as a whole or not at all."""

from __future__ import annotations

import gzip
import json
import zlib

import pyarrow as pa
import pytest

from tests import evil_values as evil
from wallaroo_spark.doors.http.bodies import KNOWN, Taken, take
from wallaroo_spark.doors.http.encodings import check_encoding, decompressed
from wallaroo_spark.doors.http.json_body import DOCUMENT_BYTES
from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import Problem

MOST = 1 << 20


def taken(body: bytes, media: str = "application/json", **fields: str) -> Taken:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return take(RequestHead("POST", "/", {**({"content-type": media} if media else {}), **named}), body, "ns", MOST)


def refused(body: bytes, media: str = "application/json", **fields: str) -> Problem:
    with pytest.raises(Problem) as caught:
        taken(body, media, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("media", "body", "values"),
    [
        ("application/json", b' {"a": 1} ', [b' {"a": 1} ']),
        ("application/json; charset=utf-8", b"{}", [b"{}"]),
        ("application/json", b' [ {"a": 1},\n"x" ,3, [4] ] ', [b'{"a": 1}', b'"x"', b"3", b"[4]"]),
        ("application/json", b"[]", []),
        ("application/json", '["ä€\\ud834"]'.encode(), ['"ä€\\ud834"'.encode()]),
        ("application/x-ndjson", b'{"a":1}\n\r\n{"b":2}\r\n{"c":3}', [b'{"a":1}', b'{"b":2}', b'{"c":3}']),
        ("application/jsonl", b"", []),
        ("text/plain", "Grüße\n".encode(), ["Grüße\n".encode()]),
        ("application/octet-stream", b"\0\xff", [b"\0\xff"]),
        ("text/plain", b"", [b""]),
    ],
)
def test_a_body_becomes_messages(media: str, body: bytes, values: list[bytes]) -> None:
    assert taken(body, media).messages.values == values


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1", b"[1,]", b"[1 2]", b"[1]]", b"[1] x", b"NaN", b"1", b'"x"', b"null", b"\xff", b"[" * 100_000],
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    assert refused(body).code == "http-body-unreadable"


@pytest.mark.parametrize(
    "media", ["", "image/png", "application/x-www-form-urlencoded", "application/cloudevents+avro"]
)
def test_a_media_type_that_is_not_known_is_refused_with_the_known_ones(media: str) -> None:
    problem = refused(b"{}", media)

    assert problem.code == "http-media-type"
    assert "application/x-ndjson" in problem.detail
    assert ("curl" in problem.detail) == ("form" in media)


def test_a_key_is_that_of_every_message() -> None:
    assert taken(b"[1, 2]", wallaroo_key="Gr\xc3\xbc\xc3\x9fe").messages.keys == ["Grüße".encode()] * 2


def test_a_message_that_is_longer_than_a_frame_is_refused() -> None:
    assert refused(b"x" * MOST, "text/plain").code == "http-body-too-large"
    assert refused(b"a\n" + b"x" * MOST, "application/x-ndjson").code == "http-body-too-large"
    assert len(taken(b"x" * (MOST - 64), "text/plain").messages) == 1


def test_a_long_json_document_is_refused_before_it_is_read() -> None:
    assert "x-ndjson" in refused(b"[" + b" " * DOCUMENT_BYTES + b"]").detail


EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order"}


class TestCloudEvents:
    """The cases of the specification's HTTP binding and JSON format."""

    def test_in_the_structured_mode_the_value_is_the_event_as_sent(self) -> None:
        body = json.dumps({**EVENT, "data": {"a": 1}}).encode()

        found = taken(body, "application/cloudevents+json; charset=utf-8")

        assert found.messages.values == [body]
        assert found.identities == ["/shop\0" + "7"]

    def test_in_the_batched_mode_each_event_is_a_message(self) -> None:
        body = json.dumps([EVENT, {**EVENT, "id": "8"}]).encode()

        found = taken(body, "application/cloudevents-batch+json")

        assert [json.loads(value)["id"] for value in found.messages.values] == ["7", "8"]
        assert taken(b"[]", "application/cloudevents-batch+json").messages.values == []

    def binary(self, body: bytes, media: str = "", **more: str) -> dict[str, object]:
        fields = {f"ce-{name}": value for name, value in {**EVENT, **more}.items()}
        found: dict[str, object] = json.loads(taken(body, media, **fields).messages.values[0])
        return found

    def test_in_the_binary_mode_json_data_is_a_value_of_the_event(self) -> None:
        found = self.binary(b' {"a": [1]} ', "application/json; charset=utf-8")

        assert found == {**EVENT, "datacontenttype": "application/json; charset=utf-8", "data": {"a": [1]}}

    def test_in_the_binary_mode_text_is_a_text(self) -> None:
        assert self.binary("Grüße".encode(), "text/plain")["data"] == "Grüße"

    @pytest.mark.parametrize(("media", "body"), [("image/png", b"\x89PNG"), ("text/plain", b"\xff"), ("", b"abc")])
    def test_in_the_binary_mode_other_data_is_in_base64(self, media: str, body: bytes) -> None:
        import base64

        found = self.binary(body, media)

        assert base64.b64decode(str(found["data_base64"])) == body

    def test_in_the_binary_mode_an_event_may_have_no_data(self) -> None:
        assert self.binary(b"") == EVENT

    def test_in_the_binary_mode_attributes_are_percent_encoded(self) -> None:
        assert self.binary(b"", subject="Euro%20%E2%82%AC%20%F0%9F%98%80")["subject"] == "Euro € 😀"

    def test_a_time_is_the_event_time_and_a_partition_key_the_key(self) -> None:
        body = json.dumps({**EVENT, "time": "2023-11-14T22:13:20.5Z", "partitionkey": "k"}).encode()

        found = taken(body, "application/cloudevents+json").messages

        assert found.event_times == [1_700_000_000_500_000_000]
        assert found.keys == [b"k"]

    def test_a_time_has_the_unit_of_the_receiver(self) -> None:
        body = json.dumps({**EVENT, "time": "2023-11-14T23:13:20+01:00"}).encode()
        head = RequestHead("POST", "/", {"content-type": "application/cloudevents+json"})

        assert take(head, body, "s", MOST).messages.event_times == [1_700_000_000]

    @pytest.mark.parametrize(
        "more",
        [
            {"datacontenttype": None, "dataschema": None, "subject": None, "time": None},
            {"datacontenttype": "text/plain; charset=utf-8", "dataschema": "https://x.example.com/y", "subject": "a b"},
            {"extinteger": 10, "extboolean": True, "exttimestamp": "2023-03-31T15:12:00Z", "extbinary": "TWE="},
            {"source": "#fragment"},
        ],
        ids=str,
    )
    def test_attributes_may_be_null_and_extensions_have_several_types(self, more: dict[str, object]) -> None:
        body = json.dumps({**EVENT, **more}).encode()

        assert taken(body, "application/cloudevents+json").messages.values == [body]
        assert taken(b"[" + body + b"]", "application/cloudevents-batch+json").messages.values == [body]

    @pytest.mark.parametrize(
        "time",
        [
            "2018-04-05T17:31:00Z",
            "2018-04-05t17:31:00z",
            "2018-04-05T17:31:00.000000000Z",
            "2018-04-05T18:31:00+01:00",
            "2018-04-05T16:31:00-01:00",
        ],
    )
    def test_a_time_may_have_fractions_and_an_offset(self, time: str) -> None:
        body = json.dumps({**EVENT, "time": time}).encode()

        assert taken(body, "application/cloudevents+json").messages.event_times == [1_522_949_460_000_000_000]

    def test_the_media_type_decides_about_the_mode_also_where_there_are_fields_of_the_binary_one(self) -> None:
        fields = {f"ce-{name}": value for name, value in EVENT.items()}
        body = json.dumps({**EVENT, "data": 1}).encode()

        assert taken(body, "application/cloudevents+json", **fields).messages.values == [body]
        batched = taken(b"[" + body + b"]", "application/cloudevents-batch+json; charset=UTF-8", **fields)
        assert batched.messages.values == [body]
        assert refused(body, "application/cloudevents+avro", **fields).code == "http-media-type"

    @pytest.mark.parametrize(
        ("field", "text"),
        [
            ("%22x%25", '"x%'),
            ('"a b"', "a b"),
            (r'"a \"b\" \\ %20"', 'a "b" \\  '),
            ('"', '"'),
            ("%e2%82%ac%41", "€A"),
        ],
    )
    def test_in_the_binary_mode_a_field_may_be_quoted(self, field: str, text: str) -> None:
        assert self.binary(b"", subject=field)["subject"] == text

    @pytest.mark.parametrize(
        "more", [{"subject": "%C0%A0"}, {"subject": "%ff"}, {"datacontenttype": "text/plain"}, {"data": "x"}]
    )
    def test_in_the_binary_mode_fields_that_break_the_specification_are_refused(self, more: dict[str, str]) -> None:
        fields = {f"ce-{name}": value for name, value in {**EVENT, **more}.items()}

        assert refused(b"{}", **fields).code == "http-body-unreadable"

    def test_a_batch_with_one_broken_event_is_refused_as_a_whole(self) -> None:
        good = json.dumps(EVENT)
        for bad in ('"text"', json.dumps({**EVENT, "specversion": "0.9"}), json.dumps({**EVENT, "id": None})):
            body = f"[{good}, {bad}]".encode()
            assert refused(body, "application/cloudevents-batch+json").code == "http-body-unreadable"

    def test_a_time_before_1970_is_none(self) -> None:
        body = json.dumps({**EVENT, "time": "1969-12-31T23:59:59Z"}).encode()

        assert taken(body, "application/cloudevents+json").messages.event_times is None

    @pytest.mark.parametrize(
        "change",
        [
            {"id": None},
            {"id": ""},
            {"source": 7},
            {"type": ""},
            {"specversion": "0.3"},
            {"time": "yesterday"},
            {"time": "2023-11-14T22:13:20"},
            {"Subject": "x"},
            {"my-name": "x"},
            {"time": "2018-04-05T18:31Z"},
            {"time": "2018-04-05T18:31:00+05"},
            {"time": "2018-04-05T18:31:00+25:00"},
            {"time": 1_700_000_000},
            {"time": ""},
            {"subject": ""},
            {"subject": 7},
            {"dataschema": ""},
            {"datacontenttype": ""},
            {"datacontenttype": "xyz"},
            {"extension": 1.5},
            {"extension": {"a": 1}},
            {"my.extension": "x"},
            {"id": {"xyz": "abc"}},
            {"data": 1, "data_base64": "eA=="},
        ],
        ids=str,
    )
    def test_an_event_that_breaks_the_specification_is_refused(self, change: dict[str, object]) -> None:
        body = json.dumps({name: value for name, value in {**EVENT, **change}.items() if value is not None}).encode()

        assert refused(body, "application/cloudevents+json").code == "http-body-unreadable"
        assert refused(b"[" + body + b"]", "application/cloudevents-batch+json").code == "http-body-unreadable"

    def test_an_event_is_an_object(self) -> None:
        assert refused(b"[]", "application/cloudevents+json").code == "http-body-unreadable"
        assert refused(b"{}", "application/cloudevents-batch+json").code == "http-body-unreadable"


class TestEncodings:
    """Compressed bodies, and bombs."""

    def whole(self, encoding: str, body: bytes, most: int = 64 << 20) -> bytes:
        return b"".join(decompressed(encoding, body, most))

    @pytest.mark.parametrize("size", [0, 1, 1_000_000])
    def test_gzip_and_zstd_are_decompressed(self, size: int) -> None:
        data = bytes(at * at % 251 for at in range(size))

        assert self.whole("gzip", gzip.compress(data)) == data
        assert self.whole("GZIP", gzip.compress(data[:10]) + gzip.compress(data[10:])) == data
        assert self.whole("zstd", pa.compress(data, "zstd", asbytes=True)) == data

    @pytest.mark.parametrize("encoding", ["gzip", "zstd"])
    def test_a_broken_body_is_refused(self, encoding: str) -> None:
        good = gzip.compress(b"x" * 1000) if encoding == "gzip" else pa.compress(b"x" * 1000, "zstd", asbytes=True)

        for body in (b"no such thing", good[: len(good) // 2], good + b"rest"):
            with pytest.raises(Problem) as caught:
                self.whole(encoding, body)
            assert caught.value.code == "http-body-unreadable"

    def test_a_bomb_is_found_before_it_has_taken_its_memory(self) -> None:
        squeeze = zlib.compressobj(9, wbits=31)
        bomb = b"".join(squeeze.compress(bytes(1 << 20)) for _ in range(64)) + squeeze.flush()
        pieces: list[int] = []
        with pytest.raises(Problem, match="expands") as caught:
            pieces.extend(map(len, decompressed("gzip", bomb, 1 << 40)))

        assert caught.value.code == "http-body-too-large"
        assert sum(pieces) <= 200 * len(bomb) + (1 << 20)

    def test_a_decompressed_body_has_a_limit(self) -> None:
        with pytest.raises(Problem, match=r"http\.maxBody"):
            self.whole("zstd", pa.compress(bytes(range(256)) * 100, "zstd", asbytes=True), 1000)

    def test_an_encoding_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(Problem) as caught:
            check_encoding("br")
        assert caught.value.headers["Accept-Encoding"] == "gzip, zstd"


@pytest.mark.parametrize("name", evil.PAYLOADS)
@pytest.mark.parametrize("kind", [*KNOWN, "cloud event in its binary mode", "event around it", "batch around it"])
def test_an_evil_payload_is_taken_exactly_or_refused_with_its_reason(kind: str, name: str) -> None:
    body = payload = evil.PAYLOADS[name]
    fields = {"content-type": kind}
    around = b'{"specversion": "1.0", "id": "1", "source": "/x", "type": "t", "data": ' + payload + b"}"
    if kind == "cloud event in its binary mode":
        fields = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "t"}
    elif kind == "event around it":
        fields, body = {"content-type": "application/cloudevents+json"}, around
    elif kind == "batch around it":
        fields, body = {"content-type": "application/cloudevents-batch+json"}, b"[" + around + b"]"
    try:
        found = [*take(RequestHead("POST", "/v1/streams/orders", fields), body, "ms", MOST).messages.values]
    except Problem as refused:
        found, problem = [], str(refused)
    else:
        problem = ""
    assert len(problem.encode()) < 1000
    assert all(isinstance(one, bytes) for one in found)
    if kind in ("text/plain", "application/octet-stream"):
        assert (found, problem) == ([payload], "")
