"""The dashboards without Grafana: their own JSON, drawn from Prometheus, in a browser or a file.

``timerange``, ``steps``, ``variables``, ``boards``, ``layout`` say what a dashboard means, without
I/O. ``prometheus`` is the one way to Prometheus, read-only and limited; ``views`` and ``alerts``
ask it for the data of a page; ``server``, ``report`` and ``assets`` make the page, live or as one
self-contained file. The drawing is in ``static``; ``scripts/vendor`` renews ``static/vendor``.
"""
