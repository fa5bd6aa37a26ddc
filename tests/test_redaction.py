from __future__ import annotations

from headrace.redaction import redact_url


def test_what_is_shown_of_a_url():
    assert redact_url("https://me:secret@shop.example:8443/a?token=1") == "https://shop.example:8443/a?...."
    assert redact_url("http://[::1]:80/a") == "http://[::1]:80/a"
    assert redact_url("me:secret@auth:4181") == "auth:4181"
    assert redact_url("auth:4181?secret=1") == "auth:4181"
    assert redact_url("http://me:secret@[half") == "***"
