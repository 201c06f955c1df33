"""Traces that tenants send, and jobs over them or over captured traffic: stored, carried out in a process of their own, read."""
