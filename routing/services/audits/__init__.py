"""Isolation audits carried out: the law is in ``namespaces.audit``, here are the probes, the bookkeeping and the calendar.

targets    which replica is tried through which endpoint
orders     an audit is ordered, begun (one at a time, within its budget) and closed
prompts    words that nobody has sent before
door       one probe through a router's internal port
execution  the plans of all cases, in order; verdicts
report     what is kept and signed
running    the above in one function, for the task and the command
reports    what routers say of engines
calendar   which audits are due, which alarms ask for one
"""
