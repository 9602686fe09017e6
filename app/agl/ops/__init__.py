"""The operator's side of the bundle: checks, images, start and stop, dashboards, reports.

Nothing here is imported by the store, and nothing heavy is imported by this package itself:
the preflight checks run with a machine's own ``python3`` before anything is installed.
"""
