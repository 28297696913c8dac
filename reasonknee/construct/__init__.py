"""From sources to annotations: OAI's MOAKS tables, masks and scans (`assemble`), or the published dataset's
files (`upstream`).

`command` runs either; `attach` joins annotations with the scans that a user has.
"""

from reasonknee.construct.command import run, run_attach

__all__ = ["run", "run_attach"]
