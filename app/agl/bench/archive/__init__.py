"""Runs kept for later: samples, dashboards, results and the machine's facts in one file."""
