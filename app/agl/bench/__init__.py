"""Load played against a running store through its public HTTP API, as trainers and runners do."""
