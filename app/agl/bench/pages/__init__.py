"""Measurements as one self-contained page: figures, tables and charts drawn as inline SVG."""
