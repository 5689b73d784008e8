"""Changing traffic: audit some of it, test for change, re-fit, certify, swap or fall back."""
