"""Names that the old fits still import from here."""

from ttamer.policy.expected import START as START, STOP as STOP
