"""What Prometheus knows of a window of time, put together for people: ``agl bench analyze``."""
