"""The edge that serves a cascade over HTTP; needs the extra ``[serve]``."""
