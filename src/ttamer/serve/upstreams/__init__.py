"""Calls to models: the HTTP client, one server, one node, and the limits of its calls."""
