"""Whatever starts processes or watches them: children of the stack's Python, their time, their answers."""
