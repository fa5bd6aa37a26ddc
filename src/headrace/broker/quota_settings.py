"""The settings of quotas (`headrace.broker.quotas`). They stand beside that package, because the settings of the
broker, which it imports, are composed of them."""

from __future__ import annotations

from headrace.settings import Settings, setting


class QuotaSettings(Settings):
    """What clients without a quota of their own may do, and how quotas are kept."""

    TITLE = "Quotas"

    quota_produce_bytes: int = setting(0, "Bytes a second that one client id may produce; 0: no limit.")
    quota_fetch_bytes: int = setting(0, "Bytes a second that one client id may fetch; 0: no limit.")
    quota_user_connections: int = setting(0, "Connections that one user may have at once; 0: no limit.")
    quota_address_connections: int = setting(0, "Connections from one address at once; 0: no limit.")
    quota_user_topics: int = setting(0, "Topics that one user may own; 0: no limit.")
    quota_user_queues: int = setting(0, "Queues that one user may own; 0: no limit.")
    quota_throttle_max_ms: int = setting(
        10_000, "The longest that a client over its quota is held back at a time.", least=1
    )
    quota_entities_max: int = setting(10_000, "Users, client ids and addresses that may have quotas.", least=1)
    quota_clients_max: int = setting(
        10_000, "Clients whose use is tracked where a quota is for each of them; the oldest are evicted.", least=1
    )
