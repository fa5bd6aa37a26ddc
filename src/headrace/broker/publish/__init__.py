"""One way in: whatever the door, what a client publishes passes here.

`admission.py` decides once what a user's publishes to a topic take, and keeps that while it is valid; `messages.py`
makes batches of single messages; `publisher.py` loads what is cold, asks for room, and appends, delays or deduplicates.
What the broker itself moves goes another way: `headrace.broker.move`.
"""

from headrace.broker.publish.admission import Admission
from headrace.broker.publish.messages import Headers, Message, Place
from headrace.broker.publish.publisher import Loadable, Publisher

__all__ = ["Admission", "Headers", "Loadable", "Message", "Place", "Publisher"]
