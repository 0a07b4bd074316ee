"""Engines: things that generate. They share `http` and know nothing of each other."""
