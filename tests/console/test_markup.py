"""Markup: nothing that comes from a broker becomes an element."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from headrace.console.ui.charts import Line, chart, nice_top, pieces, spark, time_marks
from headrace.console.ui.formats import count, rate, zone_named
from headrace.console.ui.markup import Html, h, text
from headrace.console.ui.tables import Column, ListQuery, empty, foot, table

BERLIN = zone_named("Europe/Berlin")


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def read(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    found.close()
    return found


@given(st.text())
def test_text_stays_text(words: str) -> None:
    found = read(h("p", h("a", words, href=words, title=words)))
    assert found.tags == ["p", "a"]
    plain = words.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    assert (
        found.words.replace("\0", "").replace("\ufffd", "") == plain.replace("\ufffd", "")
        or "\0" in words
        or "\r" in words
    )


def test_children_of_every_kind() -> None:
    assert h("p", "a<b", 1, None, [h("i", "x"), " ", Html("<br/>")]) == "<p>a&lt;b1<i>x</i> <br/></p>"
    assert (
        h("input", name="q", disabled=True, value=None, aria_label='"')
        == '<input name="q" disabled aria-label="&quot;"/>'
    )
    assert text(["a", ["b"]]) == "ab"


def test_a_table_sorts_by_links() -> None:
    columns = [
        Column[str]("Name", lambda row: row, "name", "name"),
        Column[str]("Size", lambda row: len(row), "num", "size"),
    ]
    query = ListQuery(search="o*", sort="name", order="asc", offset=50)
    made = table(columns, ["orders", "<script>"], "topics", "/b/topics", query)
    assert "&lt;script&gt;" in made
    assert "<script>" not in made
    assert 'aria-sort="ascending"' in made
    assert 'href="/b/topics?search=o%2A&amp;sort=name&amp;order=desc"' in made
    assert 'href="/b/topics?search=o%2A&amp;sort=size&amp;order=desc"' in made


def test_the_foot_of_a_list_leads_on_and_back() -> None:
    query = ListQuery(sort="name", order="asc", offset=50)
    made = foot(query, 50, 1_234, "/b/topics", "topics")
    assert "51–100 of 1,234 topics" in made
    assert "offset=100" in made
    assert 'href="/b/topics?sort=name&amp;order=asc"' in made
    assert "Next" not in foot(query, 50, 100, "/b/topics", "topics")


@given(st.dictionaries(st.sampled_from(["search", "sort", "order", "offset", "limit"]), st.text()))
def test_any_address_is_read(given_: dict[str, str]) -> None:
    query = ListQuery.read(given_, "name")
    assert query.order in ("asc", "desc")
    assert 0 <= query.offset < 10**9
    assert len(query.search) <= 256


def test_a_chart_has_gaps_units_and_times() -> None:
    points = [(0, 1.0), (60, 5.0), (120, None), (180, 2.0)]
    assert pieces(points) == [[(0, 1.0), (60, 5.0)], [(180, 2.0)]]
    made = chart("Messages in", [Line("", points)], rate, BERLIN)
    found = read(made)
    assert found.tags.count("polyline") == 2
    assert "5/s" in found.words
    assert 'aria-label="Messages in: Messages in now 2/s"' in made
    assert "No figures yet" in chart("Lag", [Line("", [(0, None)])], count, BERLIN)
    assert empty("Nothing", "Do it.", "headrace") != ""


@given(st.floats(min_value=1e-9, max_value=1e18))
def test_axes_end_above_their_values(value: float) -> None:
    assert value <= nice_top(value) <= value * 10.0001


@given(st.integers(0, 2_000_000_000), st.sampled_from([900, 3600, 6 * 3600, 86_400, 14 * 86_400]))
def test_few_times_stand_below_a_chart(begin: int, seconds: int) -> None:
    marks = time_marks(begin, begin + seconds, BERLIN)
    assert 0 < len(marks) <= 7
    assert all(begin <= at <= begin + seconds for at, _ in marks)


def test_a_spark_is_drawn_from_two_points_on() -> None:
    assert spark([1.0]) == ""
    assert "polyline" in spark([0.0, 0.0])
