from triomq.client.consumer.statistics import TopicCounters
from triomq.protocol.bodies.client import ConsumeStatus


def test_rates_compare_with_a_minute_ago() -> None:
    counters = TopicCounters()
    for second in range(0, 130, 10):
        counters.sample(float(second))
        counters.succeeded += 100
        counters.failed += 50
        counters.busy_s += 3.0
        counters.pulls += 10
        counters.pulled += 150
        counters.pulling_s += 1.0
    rates = counters.rates(120.0)
    assert rates == ConsumeStatus(100.0, 1050 / 60, 20.0, 700 / 60, 350 / 60, 650)


def test_rates_of_nothing_are_zero() -> None:
    assert TopicCounters().rates(5.0) == ConsumeStatus()
