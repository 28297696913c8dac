"""The machine: one way to write a file (`files`) or a folder (`folders`), to hold a folder (`locks`), to
share work (`workers`, `cluster`) and tell how far it is (`progress`), to bound it (`limits`, `memory`).

Its modules are imported one by one: the command that judges a file in a fraction of a second has no time for
the others.
"""

__all__ = ["cluster", "files", "folders", "limits", "locks", "memory", "progress", "workers"]
