"""How long tests wait for what has to come.

Nothing is measured by it: on an idle machine it comes at once, and the wait ends with it. It is so long that no test
fails on a machine that does ten other things.
"""

from __future__ import annotations

PATIENCE_S = 60.0
