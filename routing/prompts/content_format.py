"""Whether a chat template takes message content as text or as a list of parts: read from its syntax, by the rule that vLLM uses.

A template takes parts if it loops over the content of a message: over ``message.content`` for any name that stands for a message, over a macro's
parameter that was given it, or, outside macros, over something named ``content``. Filters, tests and slices do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from routing.prompts.messages import ContentFormat


def detect(tree: nodes.Template) -> ContentFormat:
    """The content format of a parsed template; text where the template is written in a way that the rule cannot follow."""
    try:
        return "openai" if any(_loops_over_content(tree)) else "string"
    except _Unfollowable:
        return "string"


class _Unfollowable(Exception):
    """An alias or loop variable that is not a plain name."""


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """The expression below filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    return node


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _is_member(node: nodes.Node | None, name: str, member: str) -> bool:
    node = _bare(node)
    if isinstance(node, nodes.Getitem):
        return _is_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == member
    return isinstance(node, nodes.Getattr) and _is_name(node.node, name) and node.attr == member


def _plain_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unfollowable
    return target.name


def _aliases(tree: nodes.Template, name: str) -> set[str]:
    """The names that stand for ``name``, through assignments."""
    found, waiting = {name}, [name]
    assignments = list(tree.find_all(nodes.Assign))
    while waiting:
        current = waiting.pop()
        for assignment in assignments:
            if _is_name(_bare(assignment.node), current) and (alias := _plain_name(assignment.target)) not in found:
                found.add(alias)
                waiting.append(alias)
    return found


def _message_names(tree: nodes.Template) -> set[str]:
    """The names of loop variables that run over the messages."""
    lists = _aliases(tree, "messages")
    return {_plain_name(loop.target) for loop in tree.find_all(nodes.For) if any(_is_name(_bare(loop.iter), each) for each in lists)}


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """Parameters of a macro that are given a message's content somewhere."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(names, call.args, strict=False), *((keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names)]
        found.update(name for name, value in given if any(_is_member(value, message, "content") for message in messages))
    return found


def _loops_over_content(tree: nodes.Template) -> Iterator[bool]:
    messages = _message_names(tree)
    inside: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        parameters = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            inside[id(loop)] = parameters or inside.get(id(loop), set())
    for loop in tree.find_all(nodes.For):
        name = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        over_content = any(_is_member(loop.iter, message, "content") for message in messages)
        if over_content or name in inside.get(id(loop), ()) or (id(loop) not in inside and name == "content"):
            _plain_name(loop.target)
            yield True
