"""Drills: put a fault into a running stack, and see whether its page arrives."""
