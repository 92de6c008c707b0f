"""Subscriptions as clients send them."""

from triomq.protocol.bodies.client import SubscriptionData
from triomq.protocol.filters.filter_types import TagFilter
from triomq.protocol.java import tags_code


def tag_subscription(topic: str, expression: str | None, sub_version: int) -> SubscriptionData:
    tag_filter = TagFilter.parse(expression)
    codes = list(map(tags_code, tag_filter.tags))
    return SubscriptionData(topic, tag_filter.expression, list(tag_filter.tags), codes, sub_version)
