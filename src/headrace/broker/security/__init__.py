"""Who may do what, whichever door asked.

`session.py` is who asks; `rights.py` names what can be asked for; `security.py` is what doors and the parts of the
broker call. Everything off is the default: each client is anonymous, and may do everything.
"""

from headrace.broker.security.rights import Operation, Resource
from headrace.broker.security.security import Security
from headrace.broker.security.session import ANONYMOUS, Session

__all__ = ["ANONYMOUS", "Operation", "Resource", "Security", "Session"]
