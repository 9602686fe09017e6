"""The dashboards without Grafana: their own JSON, drawn from Prometheus, in a browser or a file.

``timerange``, ``steps``, ``variables``, ``boards``, ``layout``: what a dashboard means, without I/O.
``prometheus``: the one way to Prometheus, read-only and limited. ``views``, ``alerts``: the data of a
page. ``server``, ``report``, ``assets``: the page itself, live or as one self-contained file.
The drawing is in ``static``; ``static/vendor`` holds what ``scripts/vendor`` copies.
"""
