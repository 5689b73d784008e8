"""Traces: what each node answered on each input, and the cascade it belongs to."""

from ttamer.cascade import CascadeNode as CascadeNode, CascadeSpec as CascadeSpec
from ttamer.trace.trace import Trace as Trace
