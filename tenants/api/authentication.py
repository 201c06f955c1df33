"""Authentication of the control API."""
