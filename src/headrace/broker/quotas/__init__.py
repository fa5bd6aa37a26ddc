"""How much each client may do: Kafka's quotas, for every door.

`kinds.py` is what can be limited, `entities.py` for whom, `table.py` which quota is a client's: Kafka's order of
precedence. A rate is a bucket (`bucket.py`); those of one client are its `Meter` (`meter.py`), which doors keep beside
whatever else they remember of it. `quotas.py` is what doors and the parts of the broker call. No quota is the default,
and costs nothing.
"""

from headrace.broker.quotas.meter import Meter
from headrace.broker.quotas.quotas import Quotas

__all__ = ["Meter", "Quotas"]
