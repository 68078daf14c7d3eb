"""Formats of files, each checked before any of it is used."""
