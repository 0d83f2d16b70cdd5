"""What is written down: configuration, policies, measurements and the frozen artefact.

Depends on the standard library and pydantic only, so a profile can be read and checked on any machine.
"""
