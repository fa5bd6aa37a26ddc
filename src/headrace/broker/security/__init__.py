"""Who may do what, whichever door asked.

`session.py` is who asks, `identity.py` as whom it was authenticated (`authenticator.py`); `rights.py` names what can be
asked for, `rules.py` says who may, and `index.py` decides by them; `security.py` is what doors and the parts of the
broker call. Everything off is the default: each client is anonymous, and may do everything.
"""

from headrace.broker.security.identity import Identity
from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.security import Security
from headrace.broker.security.session import ANONYMOUS, OWN, Session

__all__ = ["ANONYMOUS", "OWN", "Identity", "Operation", "Resource", "Security", "Session"]
