"""Looks after MongoDB for the command line: diagnosis, partitions, live servers, migration."""
