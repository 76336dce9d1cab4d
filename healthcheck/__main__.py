"""`python -m healthcheck`: the probe goes straight to its module, all else through the command line."""

from __future__ import annotations

import sys


def main() -> None:
    if sys.argv[1:] == ["probe"]:
        from healthcheck import probe

        sys.exit(probe.main())
    from healthcheck.cli import health

    health.main()


if __name__ == "__main__":
    main()
