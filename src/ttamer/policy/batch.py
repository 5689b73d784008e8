"""Names that the old fits still import from here."""

from ttamer.policy.base import Batch as Batch
