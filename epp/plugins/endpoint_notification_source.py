"""Stands for the news of endpoints that come and go."""

from epp.scheduling.plugin import DataSource


class EndpointNotificationSource(DataSource):
    """Accepted for configurations that list it: plugins see the pool in each snapshot anyway. Takes no parameters."""

    plugin_type = "endpoint-notification-source"
