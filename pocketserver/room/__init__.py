"""Rooms: one model shared among several machines."""
