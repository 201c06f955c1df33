"""A request body to the token ids that the engine will see: prepared, rendered, tokenised, as the engine does it.

``service.Prompts`` is the door. Whatever cannot be done exactly gives ``NoTokens`` with a reason from a closed list; a caller then uses estimates.
"""
