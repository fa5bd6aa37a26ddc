"""What the console has the broker keep: rules of alerts, silences, channels, and registrations.

documents.py      JSON objects in a topic of the broker's own
alerts.py         the rules that there are from the first minute, and what they can be about
registrations.py  what was asked for and approved, and what is used without
apps.py           the registry of applications, and their live settings
lease.py          which of several consoles notifies
"""

from headrace.broker.console.alerts import DEFAULT_RULES, FIGURES
from headrace.broker.console.apps import Apps
from headrace.broker.console.documents import Document, Documents
from headrace.broker.console.lease import Lease
from headrace.broker.console.registrations import Registrations

__all__ = ["DEFAULT_RULES", "FIGURES", "Apps", "Document", "Documents", "Lease", "Registrations"]
