"""The register of identity components, in encoding order. A new one is one file, one line here, and a new schema version."""

from __future__ import annotations

from namespaces.core.component import Component
from namespaces.core.components import (
    adapter,
    chat_template,
    client,
    context,
    data_class,
    endpoint,
    engine,
    epoch,
    key,
    model,
    multimodal,
    request,
    scope,
    sharing,
    tenant,
    tokenizer,
)

COMPONENTS: tuple[Component, ...] = (
    tenant.COMPONENT,
    sharing.COMPONENT,
    scope.COMPONENT,
    key.COMPONENT,
    request.COMPONENT,
    endpoint.COMPONENT,
    engine.COMPONENT,
    model.COMPONENT,
    tokenizer.COMPONENT,
    chat_template.COMPONENT,
    adapter.COMPONENT,
    context.COMPONENT,
    multimodal.COMPONENT,
    data_class.COMPONENT,
    epoch.COMPONENT,
    client.COMPONENT,
)
