"""Decisions without side effects: events in, actions out, time as an argument."""
