"""The chart's figures: tokens go into the spans in which they were written."""

from pocketserver.page.rates import SPAN_SECONDS, SPANS, RateChart, Writing


def test_an_answer_is_spread_over_the_time_it_took() -> None:
    chart = RateChart()

    chart.add(Writing(start=100.0, end=110.0, tokens=50))

    assert chart.shown(110.0)[-6:-1] == [5.0] * 5
    assert sum(chart.shown(110.0)) * SPAN_SECONDS == 50


def test_what_is_older_than_the_chart_is_forgotten() -> None:
    chart = RateChart()
    chart.add(Writing(start=100.0, end=110.0, tokens=50))

    assert sum(chart.shown(110.0 + SPANS * SPAN_SECONDS + 2)) == 0


def test_an_answer_longer_than_the_chart_fills_it_with_its_rate() -> None:
    chart = RateChart()

    chart.add(Writing(start=0.0, end=1000.0, tokens=10_000))

    assert set(chart.shown(1000.0)[:-1]) == {10.0}


def test_what_is_still_being_written_is_shown_and_not_kept() -> None:
    chart = RateChart()

    assert sum(chart.shown(10.0, [Writing(start=4.0, end=10.0, tokens=12)])) == 6.0
    assert sum(chart.shown(10.0)) == 0


def test_tokens_that_came_all_at_once_are_counted() -> None:
    chart = RateChart()

    chart.add(Writing(start=10.0, end=10.0, tokens=4))

    assert sum(chart.shown(10.0)) == 4 / SPAN_SECONDS


def test_short_answers_add_up_with_those_that_cross_a_span() -> None:
    chart = RateChart()

    for end in (10.5, 11.0, 11.9):
        chart.add(Writing(start=10.1, end=end, tokens=4))
    chart.add(Writing(start=11.0, end=13.0, tokens=10))
    chart.add(Writing(start=12.5, end=13.5, tokens=3))

    assert [span * SPAN_SECONDS for span in chart.shown(13.9)[-2:]] == [12 + 5, 5 + 3]
