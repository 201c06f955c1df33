"""The playground: one chat from the console through the control plane to a router, as any client of the tenant would send it."""
