"""Refuses any interpreter but the main one: the extension has one state for the whole process."""

import importlib


def expect_main():
    """An ImportError in any interpreter but the main one."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        if interpreters.get_current() != interpreters.get_main():
            raise ImportError("gradwire works in the main interpreter alone: import it there, or start a process")
        return


expect_main()
