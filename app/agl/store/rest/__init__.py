"""The store over HTTP: application, server and client."""
