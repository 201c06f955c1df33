"""Reconciliation carried out: the law is in ``routing.core.reconcile`` and ``routing.core.findings``, here is what it is fed with and what it does.

reports   what each router says, in Valkey
facts     what the database says of one tenant, and of the fleet
memory    namespaces that replicas are kept for: who used them last, and whether they can come again
repairs   what is safe to do by itself
running   one tenant's run: begun once, stored in one transaction, repaired step by step
orders    a run is asked for; the worker of the queue ``bulk`` is woken
"""
