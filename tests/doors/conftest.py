"""Tests that doors inherit explain themselves like those that stand in their own files."""

import pytest

pytest.register_assert_rewrite("tests.doors.conformance", "tests.doors.load", "tests.doors.reference")
