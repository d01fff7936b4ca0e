"""Faults of how ranks communicate."""
