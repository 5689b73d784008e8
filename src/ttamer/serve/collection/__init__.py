"""Traces: answers collected from upstreams, judged, labelled by a person, or read from a log."""
