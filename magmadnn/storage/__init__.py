"""Durable files: written whole or not at all, read with every byte checked."""
