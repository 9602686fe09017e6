"""A Grafana that runs: is it as it should be, and what we put into it."""
