"""Where the links of dashboards to runbooks lead.

In the repository they are ``/runbooks/NAME``, which `agl panels` serves itself. Grafana does not,
so there they get an address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DEFAULT_PORT = "9096"
# In a dashboard's JSON: a link's address, or one in Markdown.
_LINK = re.compile(r"""(?<=["(])/runbooks(?=/)""")


def lead_to(text: str, runbooks: str) -> str:
    """A dashboard's JSON whose links to runbooks lead to ``runbooks``, an address."""
    return _LINK.sub(lambda _: runbooks, text)


def address(variables: Mapping[str, str]) -> str:
    """Where people reach the runbooks of a bundle with these variables."""
    base = variables.get("AGL_RUNBOOKS_EXTERNAL_URL", "")
    port = variables.get("AGL_RUNBOOKS_PORT") or DEFAULT_PORT
    return f"{(base or f'http://localhost:{port}').rstrip('/')}/runbooks"
