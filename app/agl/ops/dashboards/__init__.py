"""Grafana dashboards as code: one module per board, JSON rendered by ``build``.

The committed files under ``grafana/dashboards`` are the output; ``scripts/generate`` renews them
and ``scripts/generate --check`` fails when they differ from what the code says.
"""
